"""The nightly profile of Hypothesis: ``pytest tests/families/scaler --hypothesis-profile nightly -s``."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("nightly", max_examples=500, stateful_step_count=40, deadline=None, print_blob=True)
