"""Edits of a syntax tree, and the self-test that counts what they escape."""

from __future__ import annotations

import ast
import time

import pytest
import torch

from amp_checks import backends, families
from amp_checks.families.ops.mutants.every_edit import SOURCES as OPS
from amp_checks.families.scaler.mutants.every_edit import SOURCE as SCALER
from amp_checks.suite import edits, every_edit
from amp_checks.suite.every_edit import Fate, Outcome
from amp_checks.suite.measure import measure
from amp_checks.torch_api import state
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
            ("operand-removed", "a and (not b)", "a"),
            ("operand-removed", "a and (not b)", "not b"),
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
    "with": (
        "with a:\n    b = c",
        {("context-removed", "with a:", "if True:"), ("assignment-removed", "b = c", "pass")},
    ),
    "with two": (
        "with a, b as c:\n    pass",
        {("context-removed", "a", "nothing"), ("context-removed", "b as c", "nothing")},
    ),
    "arguments": (
        "x(a, *b, c=d, **e)",
        {
            ("call-removed", "x(a, *b, c=d, **e)", "pass"),
            ("argument-removed", "*b", "nothing"),
            ("argument-removed", "c=d", "nothing"),
            ("argument-removed", "**e", "nothing"),
        },
    ),
    "elements": (
        "f(a in (b, c))",
        {
            ("comparison-flipped", "a in (b, c)", "a not in (b, c)"),
            ("element-removed", "b", "nothing"),
            ("element-removed", "c", "nothing"),
            ("call-removed", "f(a in (b, c))", "pass"),
        },
    ),
    "decorator": ("@a(1)\ndef f():\n    pass", {("decorator-removed", "a(1)", "nothing")}),
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
    found = SCALER.edits()
    assert len(found) >= 450
    assert set(every_edit.equivalents(SCALER)) <= {*found, *(edit.name for edit in found.values())}


@pytest.mark.parametrize("module", OPS)
def test_edits_of_the_installed_autocast(module: str) -> None:
    found = OPS[module].edits()
    assert len(found) >= {"torch.amp.autocast_mode": 290, "torch.utils.checkpoint": 38}.get(module, 25)
    assert set(every_edit.equivalents(OPS[module])) <= {*found, *(edit.name for edit in found.values())}


def test_of_checkpointing_only_what_deals_with_autocast_is_edited() -> None:
    found = OPS["torch.utils.checkpoint"].edits().values()
    assert all("autocast" in edit.statement or "autocast" in edit.scope[0] for edit in found)
    assert {edit.scope[-1] for edit in found} == {
        "_get_autocast_kwargs",
        "forward",
        "backward",
        "_checkpoint_without_reentrant_generator",
        "recompute_fn",
    }


def test_an_edit_in_place_is_gone_afterwards_and_whoever_holds_the_function_runs_it() -> None:
    held = torch.autocast
    (edit,) = [
        each for each in OPS["torch.amp.autocast_mode"].edits().values() if each.before.endswith("self._enabled)")
    ]
    with edits.in_place("torch.amp.autocast_mode", edit), held("cpu"):
        assert not torch.is_autocast_enabled("cpu")
    with held("cpu"):
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("module", [*OPS])
def test_every_edit_in_place_is_undone(module: str) -> None:
    """One of each kind and scope: it is made without an error, and nothing of it is left."""
    before = _code_of(module)
    chosen = {(edit.id.partition("@")[0], edit.scope): edit for edit in OPS[module].edits().values()}
    for edit in chosen.values():
        with edits.in_place(module, edit):
            pass
        assert _code_of(module) == before, edit.id


def _code_of(module: str) -> dict[str, object]:
    """What the names of a module, and of its classes, are."""
    import importlib

    found: dict[str, object] = {}
    for name, held in vars(importlib.import_module(module)).items():
        found[name] = getattr(held, "__code__", held if name != "__all__" else list(held))
        for attribute, inner in vars(held).items() if isinstance(held, type) else ():
            found[f"{name}.{attribute}"] = getattr(inner, "__code__", None)
    return found


def test_an_equivalent_edit_survives_and_a_faulty_one_does_not() -> None:
    told: list[str] = []
    kept = "constant-changed@OptState:3"
    tally = every_edit.try_every_edit(SCALER, told.append, only=kept)
    assert (tally.total, tally.by_running, tally.survived) == (1, 0, ())
    assert tally.equivalent == ((kept, every_edit.equivalents(SCALER)[kept]),)
    assert told[0].startswith(f"equivalent: {kept} [line ")
    tally = every_edit.try_every_edit(SCALER, told.append, only="condition-true@GradScaler._maybe_opt_step:1")
    assert (tally.total, tally.by_running, tally.survived, tally.equivalent) == (1, 1, (), ())
    assert tally.kind == "syntax-tree edits of amp/grad_scaler.py (torch's own tests kill 202 of 357)"


AUTOCAST = OPS["torch.amp.autocast_mode"]


def test_slips_of_autocast_are_caught_and_the_state_is_as_before() -> None:
    before = state.capture()
    for name in ("call-removed@autocast.__exit__", "assignment-removed@custom_fwd.decorate_fwd"):
        tally = every_edit.try_every_edit(AUTOCAST, lambda _: None, only=name)
        assert tally.total >= 3
        assert tally.by_running == tally.total, tally.survived
    assert state.restore(before) == []


def outcome(fate: Fate, edit_id: str = "raise-removed@GradScaler.step:1", listed: str = "") -> Outcome:
    return Outcome(id=edit_id, fault="line 1: a -> b", fate=fate, by="", listed=listed)


@pytest.mark.parametrize("fate", [Fate.SURVIVED, Fate.NOT_IMPORTED, Fate.TIMED_OUT])
def test_whatever_is_not_killed_fails_the_self_test(fate: Fate) -> None:
    assert list(every_edit.faults(SCALER, [outcome(fate)], partial=True)) == [
        f"{fate}: raise-removed@GradScaler.step:1 [line 1: a -> b]"
    ]
    assert list(every_edit.faults(SCALER, [outcome(Fate.KILLED), outcome(Fate.EQUIVALENT)], partial=True)) == []


def test_an_entry_that_is_killed_or_matches_nothing_fails_the_self_test() -> None:
    (error,) = every_edit.faults(
        SCALER, [outcome(Fate.KILLED, "constant-changed@OptState:3", "constant-changed@OptState:3")], partial=True
    )
    assert "listed as equivalent, but" in error
    errors = list(every_edit.faults(SCALER, [outcome(Fate.KILLED)], partial=False))
    assert len(errors) == len(every_edit.equivalents(SCALER))
    assert all("no edit of this torch's source" in error for error in errors)


def test_an_import_error_is_no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    edit = next(e for e in edits.edits("x = 1 + 1\ny = (2).bit_length()") if e.before == "x = 1 + 1")
    monkeypatch.setattr(edits, "source_of", lambda _: "x = 1 + 1\nprint(x)")
    fate, by = every_edit._in_child(lambda: every_edit._hunt(SCALER, edit, ()))
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
