"""The family ``scaler`` as a value."""

from amp_checks.families.scaler.cases import CASES
from amp_checks.families.scaler.checks import checks_for
from amp_checks.families.scaler.coverage import TABLES
from amp_checks.families.scaler.mutants.table import BULK, MUTANTS
from amp_checks.suite.family import Family

FAMILY = Family(name="scaler", cases=CASES, checks_for=checks_for, mutants=MUTANTS, bulk=BULK, tables=TABLES)
