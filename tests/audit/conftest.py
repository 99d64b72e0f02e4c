"""The fixtures of the audit lie in ``fixtures/audit``, which is no package; real architectures need their own extras."""

from __future__ import annotations

import importlib.util
import sys

from amp_checks import data

sys.path.insert(0, str(data.fixture("audit")))

# The environment `models` of tox installs them, and names the folder: there a missing one is an error.
MODEL_LIBRARIES = ("torchvision", "timm", "transformers", "diffusers")
collect_ignore = [] if all(map(importlib.util.find_spec, MODEL_LIBRARIES)) else ["models"]
