"""The family ``fp32-only`` as a value."""

from amp_checks.families.fp32_only.cases import CASES
from amp_checks.families.fp32_only.checks import checks_for
from amp_checks.families.fp32_only.mutants.table import MUTANTS
from amp_checks.suite.family import Family

FAMILY = Family(name="fp32-only", cases=CASES, checks_for=checks_for, mutants=MUTANTS)
