"""Promises that no table of rows can state: one module for each topic, a check under the row that it makes."""

from amp_checks.families.scaler.stories import (  # noqa: F401 - importing a module adds its rows
    construction,
    fused,
    kernels,
    refusals,
    resume,
    scaling,
    state,
    stepping,
    unmodified,
)
from amp_checks.families.scaler.stories.story import ROWS, StoryCase

__all__ = ["ROWS", "StoryCase"]
