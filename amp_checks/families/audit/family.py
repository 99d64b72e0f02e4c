"""The family ``audit`` as a value."""

from amp_checks.families.audit.cases import CASES
from amp_checks.families.audit.checks import checks_for
from amp_checks.families.audit.mutants import BULK, MUTANTS
from amp_checks.suite.family import Family

FAMILY = Family(name="audit", cases=CASES, checks_for=checks_for, mutants=MUTANTS, bulk=BULK)
