"""Promises of GradScaler that need code of their own: one module for each topic, the row above its check."""

from amp_checks.families.scaler.stories import (  # noqa: F401 - importing a module adds its rows
    construction,
    fused,
    kernels,
    refusals,
    resume,
    scaling,
    state,
    stepping,
)
from amp_checks.families.scaler.stories.story import ROWS, StoryCase

__all__ = ["ROWS", "StoryCase"]
