"""The family ``distributed`` as a value."""

from amp_checks.families.distributed.cases import CASES
from amp_checks.families.distributed.checks import checks_for
from amp_checks.families.distributed.coverage import TABLES
from amp_checks.families.distributed.mutants.table import MUTANTS
from amp_checks.suite.family import Family

FAMILY = Family(name="distributed", cases=CASES, checks_for=checks_for, mutants=MUTANTS, tables=TABLES)
