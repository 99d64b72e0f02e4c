"""Late faults are found in time and by the right rule; corrected twins and healthy trainings raise no alarm."""

from __future__ import annotations

from pathlib import Path

import late_faults
import pytest

from amp_checks.audit.finding import Severity
from amp_checks.monitor import watch
from amp_checks.monitor.rules import RULES

FAULTS = late_faults.LATE
JUDGED_ELSEWHERE = {"loss-scale-at-floor", "gradient-not-finite", "value-not-finite"}


@pytest.mark.parametrize("late", FAULTS, ids=lambda late: str(late.id))
def test_a_late_fault_is_found_and_its_twin_is_not(late: late_faults.Late, tmp_path: Path) -> None:
    with watch(tmp_path / "faulty.jsonl", every=late_faults.EVERY) as faulty:
        late.run(faulty=True)
    found = [one for one in faulty.findings if one.rule in late.rules]
    assert found, faulty.findings
    before = [one for one in faulty.findings if one.step is not None and one.step < late.begin - 1 and late.fault]
    assert not before
    with watch(tmp_path / "twin.jsonl", every=late_faults.EVERY) as twin:
        late.run(faulty=False)
    assert twin.findings == ()


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_training_raises_no_alarm(seed: int, tmp_path: Path) -> None:
    with watch(tmp_path / "healthy.jsonl", every=late_faults.EVERY) as healthy:
        late_faults.healthy(seed)
    assert [one for one in healthy.findings if one.severity is not Severity.NOTE] == []
    assert healthy.history.counts["steps"] >= 298


def test_at_least_thirty_faults_begin_between_50_and_500_steps_and_trip_every_rule() -> None:
    assert len(FAULTS) >= 30
    assert all(50 <= late.begin <= 500 for late in FAULTS)
    assert {name for late in FAULTS for name in late.rules} >= set(RULES) - JUDGED_ELSEWHERE
