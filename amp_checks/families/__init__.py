"""Every family of checks. A new one is a folder here, and a line below.

A family's folder holds ``family.py`` with its ``FAMILY``; the words inside are the same in all: ``rows`` and ``inputs``
say what a row is, ``tables`` hold rows, ``cases`` is all rows in one sequence, ``checks`` has ``checks_for`` and the
checks, ``mutants`` the planted faults.
"""

from amp_checks.suite.collect import collect
from amp_checks.suite.family import FAMILIES, Family, cases, checks_for
from amp_checks.suite.item import run
from amp_checks.suite.parametrize import parametrize_with_checks

__all__ = ["FAMILIES", "Family", "cases", "checks_for", "collect", "parametrize_with_checks", "run"]

FAMILIES.declare("ops", f"{__name__}.ops.family")
FAMILIES.declare("fp32-only", f"{__name__}.fp32_only.family")
FAMILIES.declare("scaler", f"{__name__}.scaler.family")
FAMILIES.declare("distributed", f"{__name__}.distributed.family")
FAMILIES.declare("convergence", f"{__name__}.convergence.family")
FAMILIES.declare("audit", f"{__name__}.audit.family")
FAMILIES.declare("worth", f"{__name__}.worth.family")
FAMILIES.declare("planted", f"{__name__}.planted.family")
