"""The family ``convergence`` as a value."""

from amp_checks.families.convergence.cases import CASES
from amp_checks.families.convergence.checks import checks_for
from amp_checks.families.convergence.curves import curves
from amp_checks.families.convergence.mutants.table import MUTANTS
from amp_checks.suite.family import Family

FAMILY = Family(
    name="convergence", cases=CASES, checks_for=checks_for, mutants=MUTANTS, curves={"check_trains_like_fp32": curves}
)
