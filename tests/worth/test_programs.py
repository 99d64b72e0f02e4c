"""Programs with a planted reason: it is named first, with its line; healthy ones: none is invented."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import warnings
from typing import Any

import pytest

from amp_checks import backends
from amp_checks.audit.case import AuditCase
from amp_checks.records.fixtures import fixture
from amp_checks.worth import devices
from amp_checks.worth.report import Worth, worth


@functools.cache
def programs() -> list[Any]:
    folder = str(fixture("worth"))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    for name in ("planted_programs", "healthy_programs"):
        importlib.import_module(name)
    found: list[Any] = importlib.import_module("worth_programs").PROGRAMS
    return found


def found_of(program: Any) -> Worth:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = AuditCase(id=program.id, build=program.build)
        fixtures = importlib.import_module("worth_programs")
        device = dataclasses.replace(devices.device(fixtures.DEVICE), launch=fixtures.LAUNCH)
        return worth(case, backends.backend(program.backend), device)


PLANTED = [one for one in programs() if one.cause]
HEALTHY = [one for one in programs() if not one.cause]


@pytest.mark.parametrize("program", PLANTED, ids=lambda one: one.id)
def test_a_planted_reason_is_named_first_with_its_line(program: Any) -> None:
    first = found_of(program).reasons[0]
    assert (first.cause, first.fault) == (program.cause, True)
    assert first.where is not None
    name, _, line = first.where.rpartition(":")
    assert name.endswith("planted_programs.py")
    assert int(line) in program.lines


@pytest.mark.parametrize("program", HEALTHY, ids=lambda one: one.id)
def test_no_reason_is_invented_for_a_healthy_program(program: Any) -> None:
    found = found_of(program)
    assert [one for one in found.reasons if one.fault] == []
    assert found.gain > 1.0


def test_there_are_as_many_as_are_claimed() -> None:
    assert len(PLANTED) >= 15
    assert len(HEALTHY) >= 10
