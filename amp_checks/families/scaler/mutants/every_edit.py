"""How many edits of torch's scaler the scaler family catches.

Each edit is tried in a forked child on one thread, against the checks of the family, until one of them fails by a
measurement. A child that cannot import its edited module, or does not end in time, has killed nothing.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection

from amp_checks import backends, core
from amp_checks.core import Result, Status, SuiteError
from amp_checks.families.scaler.mutants import edits
from amp_checks.families.scaler.mutants.edits import Edit
from amp_checks.families.scaler.optimizers.cases import OptimizerCase
from amp_checks.records import fixtures, known_defects
from amp_checks.suite import collect, planting
from amp_checks.suite.item import Item
from amp_checks.suite.measure import measure
from amp_checks.suite.planting import Tally
from amp_checks.torch_api.backend import Backend

EQUIVALENT = "scaler/equivalent_edits.json"
"""Fixture: id of an edit -> why no check on a CPU can tell it from the original."""

TORCHS_OWN = (202, 357)
"""Edits of ``grad_scaler.py`` that the tests of torch 2.13.0 itself kill, of how many (another, smaller set)."""

SECONDS = 60.0
"""How long a child may take."""


class Fate(enum.StrEnum):
    """What became of a faulty scaler."""

    KILLED = "killed"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"
    """Survived, and is listed with a reason."""
    NOT_IMPORTED = "not imported"
    TIMED_OUT = "timed out"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One edit and its fate.

    Attributes:
        id: of the edit.
        fault: what was changed.
        fate: what became of it.
        by: the item that killed it, or why it was not killed.
    """

    id: str
    fault: str
    fate: Fate
    by: str = ""

    def describe(self) -> str:
        return f"{self.fate}: {self.id} [{self.fault}] {self.by}".rstrip()


def equivalents() -> dict[str, str]:
    """The edits that no check can kill on a CPU, each with its reason.

    Raises:
        SuiteError: the fixture is malformed.
    """
    path = fixtures.fixture(EQUIVALENT)
    try:
        entries: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["edits"]
    except (OSError, ValueError, KeyError) as error:
        message = f"{EQUIVALENT} cannot be read: {type(error).__name__}: {error}"
        raise SuiteError(message) from error
    if empty := [name for name, reason in entries.items() if not reason.strip()]:
        message = f"{EQUIVALENT}: {empty[0]!r} gives no reason"
        raise SuiteError(message)
    return entries


def edit_every_node(
    progress: Callable[[str], object], *, backend: Backend | None = None, only: str = ""
) -> Iterator[Tally]:
    """Try every edit; one tally.

    Args:
        progress: called with one line for every edit that was not simply killed, and now and then with a count.
        backend: where; ``cpu-float16`` where none is given.
        only: try only those whose id contains this.
    """
    began = time.perf_counter()
    where = backends.backend("cpu-float16") if backend is None else backend
    source = edits.installed_source()
    chosen = [edit for edit in edits.edits(source) if only in edit.id]
    outcomes: list[Outcome] = []
    for outcome in _try(source, chosen, where):
        outcomes.append(outcome)
        if outcome.fate is not Fate.KILLED:
            progress(outcome.describe())
        if len(outcomes) % 50 == 0:
            progress(f"{len(outcomes)} of {len(chosen)} edits tried")
    killed, tried = TORCHS_OWN
    yield Tally(
        kind=f"syntax-tree edits of grad_scaler.py (torch's own tests kill {killed} of {tried})",
        total=len(outcomes),
        by_running=sum(outcome.fate is Fate.KILLED for outcome in outcomes),
        survived=tuple(faults(outcomes, partial=bool(only))),
        equivalent=tuple((outcome.id, outcome.by) for outcome in outcomes if outcome.fate is Fate.EQUIVALENT),
        seconds=time.perf_counter() - began,
    )


def faults(outcomes: Sequence[Outcome], *, partial: bool) -> Iterator[str]:
    """One line for each edit that escaped, and for each entry of the list of equivalents that is wrong.

    Args:
        outcomes: of the edits that were tried.
        partial: not all edits were.
    """
    listed = equivalents()
    for outcome in outcomes:
        if outcome.fate is Fate.KILLED and outcome.id in listed:
            yield f"{outcome.id} is listed as equivalent, but {outcome.by} kills it: remove it from {EQUIVALENT}"
        elif outcome.fate not in {Fate.KILLED, Fate.EQUIVALENT}:
            yield outcome.describe()
    if not partial:
        known = {outcome.id for outcome in outcomes}
        for name in listed:
            if name not in known:
                yield f"{EQUIVALENT} lists {name}, which is no edit of this torch's source"


def _try(source: str, chosen: Iterable[Edit], backend: Backend) -> Iterator[Outcome]:
    listed = equivalents()
    items = [item for item in collect.collect(backends=[backend], families=["scaler"]) if _tells_edits(item.case)]
    _require_health(items)
    counts: collections.Counter[str] = collections.Counter()
    for edit in chosen:
        # What has killed most so far is tried first.
        items.sort(key=lambda item: -counts[item.id])
        fate, by = _in_child(functools.partial(_hunt, source, edit, items))
        if fate is Fate.KILLED:
            counts[by] += 1
        elif fate is Fate.SURVIVED and edit.id in listed:
            fate, by = Fate.EQUIVALENT, listed[edit.id]
        yield Outcome(id=edit.id, fault=f"line {edit.line}: {edit.before} -> {edit.after}", fate=fate, by=by)


def _tells_edits(case: core.Case) -> bool:
    """Leaves out most optimizers: to a scaler they are all one of two kinds, and their rows cost most of the time."""
    return not isinstance(case, OptimizerCase) or case.optimizer == "SGD"


def _require_health(items: Sequence[Item]) -> None:
    """All items must hold on the scaler as it is. It also makes torch import here what each child would import anew."""
    for item in items:
        result = item.run()
        if result.status not in {Status.PASSED, Status.KNOWN_DEFECT}:
            message = f"the self-test needs a healthy scaler to start from, but {result.describe()}"
            raise SuiteError(message)


def _hunt(source: str, edit: Edit, items: Sequence[Item]) -> tuple[Fate, str]:
    """Run the checks on the edited scaler until one fails."""
    try:
        module = edits.load(edits.edited(source, edit))
    except Exception as error:  # noqa: BLE001 - whatever the import raises
        return Fate.NOT_IMPORTED, f"{type(error).__name__}: {error}"
    for item in items:
        faulty = dataclasses.replace(item.backend, grad_scaler=module.GradScaler)
        result = known_defects.judge(measure(item.check, item.case, faulty))
        if kills(result):
            return Fate.KILLED, item.id
    return Fate.SURVIVED, ""


def kills(result: Result) -> bool:
    """Whether a result kills a faulty scaler: it failed, by a measurement and not by a crash alone."""
    return result.status is Status.FAILED and any(not planting.is_crash(finding) for finding in result.failures)


def _in_child(work: Callable[[], tuple[Fate, str]]) -> tuple[Fate, str]:
    """Run ``work`` in a fork of this process, which an edit can neither spoil nor stop."""
    fork = multiprocessing.get_context("fork")
    reading, writing = fork.Pipe(duplex=False)
    child = fork.Process(target=_answer, args=(work, writing))
    with warnings.catch_warnings():
        # Python 3.12 warns of threads; torch runs on one here, and the child starts none.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    writing.close()
    try:
        if not reading.poll(SECONDS):
            return Fate.TIMED_OUT, f"no answer in {SECONDS:g} s"
        fate, by = reading.recv()
    except EOFError:
        return Fate.SURVIVED, "the child ended without an answer"
    else:
        return fate, by
    finally:
        child.kill()
        child.join()
        reading.close()


def _answer(work: Callable[[], tuple[Fate, str]], writing: Connection) -> None:
    """What the child does; what it prints is thrown away."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    writing.send(work())
