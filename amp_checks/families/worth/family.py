"""The family ``worth`` as a value."""

from amp_checks.families.worth.cases import CASES
from amp_checks.families.worth.checks import checks_for
from amp_checks.families.worth.mutants import MUTANTS
from amp_checks.suite.family import Family

FAMILY = Family(name="worth", cases=CASES, checks_for=checks_for, mutants=MUTANTS)
