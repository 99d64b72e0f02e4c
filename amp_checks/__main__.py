"""``python -m amp_checks``: the same as ``amp-checks``."""

import sys

from amp_checks.cli import entry

sys.exit(entry())
