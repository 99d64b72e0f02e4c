"""The family ``planted`` as a value."""

from amp_checks.families.planted.cases import CASES
from amp_checks.families.planted.checks import checks_for
from amp_checks.suite.family import Family

FAMILY = Family(name="planted", cases=CASES, checks_for=checks_for)
