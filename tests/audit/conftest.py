"""The fixtures of the audit lie in ``fixtures/audit``, which is no package."""

from __future__ import annotations

import sys

from amp_checks import data

sys.path.insert(0, str(data.fixture("audit")))
