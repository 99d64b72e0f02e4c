"""Edits of a syntax tree, and the self-test that counts what they escape."""

from __future__ import annotations

import ast
import time

import pytest

from amp_checks import backends, families
from amp_checks.families.scaler.mutants import edits, every_edit
from amp_checks.families.scaler.mutants.every_edit import Fate, Outcome
from amp_checks.suite.measure import measure
from amp_checks.torch_api.backend import Backend

SOURCES: dict[str, tuple[str, set[tuple[str, str, str]]]] = {
    "comparison": (
        "x = a < b",
        {
            ("comparison-flipped", "a < b", "a >= b"),
            ("boundary-moved", "a < b", "a <= b"),
            ("assignment-removed", "x = a < b", "pass"),
        },
    ),
    "identity": (
        "f(a is None)",
        {("comparison-flipped", "a is None", "a is not None"), ("call-removed", "f(a is None)", "pass")},
    ),
    "arithmetic": (
        "y += 2 * z",
        {
            ("arithmetic-swapped", "y += 2 * z", "y -= 2 * z"),
            ("arithmetic-swapped", "2 * z", "2 / z"),
            ("constant-changed", "2", "3"),
            ("assignment-removed", "y += 2 * z", "pass"),
        },
    ),
    "and": (
        "f(a and not b)",
        {
            ("and-or-swapped", "a and (not b)", "a or not b"),
            ("not-dropped", "not b", "b"),
            ("call-removed", "f(a and (not b))", "pass"),
        },
    ),
    "if": (
        "if a:\n    raise E('x')",
        {
            ("condition-true", "if a:", "if True:"),
            ("condition-false", "if a:", "if False:"),
            ("raise-removed", "raise E('x')", "pass"),
            ("constant-changed", "'x'", "'x?'"),
        },
    ),
    "assert": ("assert a", {("assert-removed", "assert a", "pass")}),
    "return": ("def f():\n    'a docstring'\n    return a", {("return-dropped", "return a", "return None")}),
    "annotations and overloads are passed over": (
        "@overload\ndef f(x: 'int' = 1) -> 'int':\n    return 1\ny: 'int'",
        set(),
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_edits_of_a_source(name: str) -> None:
    source, expected = SOURCES[name]
    found = {(edit.id.split("@")[0], edit.before, edit.after) for edit in edits.edits(source)}
    assert found == expected


@pytest.mark.parametrize("name", SOURCES)
def test_an_edit_changes_one_place_and_compiles(name: str) -> None:
    source, _ = SOURCES[name]
    for edit in edits.edits(source):
        tree = edits.edited(source, edit)
        assert ast.unparse(tree) != ast.unparse(ast.parse(source))
        compile(tree, "edited", "exec")


def test_edits_of_the_installed_scaler() -> None:
    found = edits.edits(edits.installed_source())
    assert len(found) >= 357
    assert len({edit.id for edit in found}) == len(found)
    assert set(every_edit.equivalents()) <= {edit.id for edit in found}


def test_an_equivalent_edit_survives_and_a_faulty_one_does_not() -> None:
    told: list[str] = []
    kept = "constant-changed@OptState:3"
    (tally,) = every_edit.edit_every_node(told.append, only=kept)
    assert (tally.total, tally.by_running, tally.survived) == (1, 0, ())
    assert tally.equivalent == ((kept, every_edit.equivalents()[kept]),)
    assert told[0].startswith(f"equivalent: {kept} [line ")
    (tally,) = every_edit.edit_every_node(told.append, only="condition-true@GradScaler._maybe_opt_step:1")
    assert (tally.total, tally.by_running, tally.survived, tally.equivalent) == (1, 1, (), ())
    assert tally.kind == "syntax-tree edits of grad_scaler.py (torch's own tests kill 202 of 357)"


def outcome(fate: Fate, edit_id: str = "raise-removed@GradScaler.step:1") -> Outcome:
    return Outcome(id=edit_id, fault="line 1: a -> b", fate=fate, by="")


@pytest.mark.parametrize("fate", [Fate.SURVIVED, Fate.NOT_IMPORTED, Fate.TIMED_OUT])
def test_whatever_is_not_killed_fails_the_self_test(fate: Fate) -> None:
    assert list(every_edit.faults([outcome(fate)], partial=True)) == [
        f"{fate}: raise-removed@GradScaler.step:1 [line 1: a -> b]"
    ]
    assert list(every_edit.faults([outcome(Fate.KILLED), outcome(Fate.EQUIVALENT)], partial=True)) == []


def test_an_entry_that_is_killed_or_matches_nothing_fails_the_self_test() -> None:
    (error,) = every_edit.faults([outcome(Fate.KILLED, "constant-changed@OptState:3")], partial=True)
    assert "listed as equivalent, but" in error
    errors = list(every_edit.faults([outcome(Fate.KILLED)], partial=False))
    assert len(errors) == len(every_edit.equivalents())
    assert all("no edit of this torch's source" in error for error in errors)


def test_an_import_error_is_no_kill() -> None:
    edit = next(e for e in edits.edits("x = 1 + 1\ny = (2).bit_length()") if e.before == "x = 1 + 1")
    fate, by = every_edit._in_child(lambda: every_edit._hunt("x = 1 + 1\nprint(x)", edit, ()))
    assert (fate, by) == (Fate.NOT_IMPORTED, "NameError: name 'x' is not defined")


def test_a_child_that_hangs_or_dies_is_no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every_edit, "SECONDS", 0.5)

    def hangs() -> tuple[Fate, str]:
        time.sleep(60)
        return Fate.KILLED, ""

    assert every_edit._in_child(hangs)[0] is Fate.TIMED_OUT

    def dies() -> tuple[Fate, str]:
        raise SystemExit

    fate, by = every_edit._in_child(dies)
    assert (fate, by) == (Fate.SURVIVED, "the child ended without an answer")


def test_a_crash_alone_is_no_kill() -> None:
    """An edit whose only trace on an item is an exception out of the scaler has not been measured there."""
    from amp_checks import core

    def check_crashes(case: object, backend: Backend) -> object:
        core.attempt("scaler.step", lambda: 1 / 0)
        yield core.exact("never", actual=1, expected=1, why="")

    case = families.cases("scaler")[0]
    result = measure(check_crashes, case, backends.backend("cpu-float16"))  # type: ignore[arg-type]
    assert result.status is core.Status.FAILED
    assert not every_edit.kills(result)
