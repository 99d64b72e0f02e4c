"""The family ``ops`` as a value."""

from amp_checks.families.ops.cases import CASES
from amp_checks.families.ops.checks import checks_for
from amp_checks.families.ops.mutants.table import BULK, MUTANTS
from amp_checks.suite.family import Family

FAMILY = Family(name="ops", cases=CASES, checks_for=checks_for, mutants=MUTANTS, bulk=BULK)
