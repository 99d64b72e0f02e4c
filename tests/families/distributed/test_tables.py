"""The tables of the family: complete, documented, and each check caught out by a planted fault."""

from __future__ import annotations

from amp_checks import families
from amp_checks.families.distributed import coverage
from amp_checks.families.distributed.behaviours import BEHAVIOURS, NOT_HERE
from amp_checks.families.distributed.cases import CASES
from amp_checks.families.distributed.mutants.table import MUTANTS
from amp_checks.records import fixtures, known_defects


def test_every_behaviour_has_a_row_or_a_reason_and_not_both() -> None:
    covered = {number for case in CASES for number in case.behaviours}
    assert covered.isdisjoint(NOT_HERE)
    assert covered | set(NOT_HERE) == set(BEHAVIOURS) == set(range(1, 52))


def test_ids_of_rows_are_unique() -> None:
    assert len({case.id for case in CASES}) == len(CASES)


def test_every_check_kills_a_mutant_or_fails_where_torch_does() -> None:
    checks = {check.__name__ for case in CASES for check in families.checks_for(case)}
    failing = {defect.check for defect in known_defects.registered()}
    caught_out = {name for mutant in MUTANTS for name in mutant.killed_by}
    # Faults planted in this process do not reach the ranks that are processes of their own.
    assert checks - caught_out - failing == {"check_ddp_processes"}


def test_there_are_forty_faults() -> None:
    assert len(MUTANTS) >= 40


def test_documented_table_is_the_printed_one() -> None:
    text = (fixtures.fixture("scaler").parents[1] / "docs/distributed-behaviours.md").read_text(encoding="utf-8")
    printed = "\n".join(coverage.markdown(coverage.behaviours()))
    assert printed in text, "run python -m amp_checks.families.distributed.coverage"
