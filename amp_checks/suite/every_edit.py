"""How many edits of a source file of torch's a family catches.

Each edit is tried in a forked child on one thread, against the items of the family, until one of them fails by a
measurement. A child that cannot import its edited module, or does not end in time, has killed nothing.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import gc
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection

from amp_checks.core import Result, Status, SuiteError
from amp_checks.records import fixtures, known_defects
from amp_checks.suite import edits, planting
from amp_checks.suite.edits import Edit
from amp_checks.suite.item import Item
from amp_checks.suite.measure import measure
from amp_checks.suite.planting import Tally
from amp_checks.torch_api.backend import Backend

SECONDS = 60.0
"""How long a child may take."""

Change = Callable[[Backend], Backend]
"""Makes a backend run the edited code."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source file of torch's whose edits a family must catch.

    Attributes:
        module: its name: ``torch.amp.grad_scaler``.
        equivalents: the fixture that lists the edits that nothing can catch, each with its reason.
        plant: makes an edit for the length of a block; gives what makes a backend run it.
        items: what must catch them.
        concerns: which edits count.
        note: for the tally.
    """

    module: str
    equivalents: str
    plant: Callable[[Edit], AbstractContextManager[Change]]
    items: Callable[[], Sequence[Item]]
    concerns: Callable[[Edit], bool] = lambda _: True
    note: str = ""

    @property
    def file(self) -> str:
        """The end of its path: ``amp/grad_scaler.py``."""
        return f"{self.module.removeprefix('torch.').replace('.', '/')}.py"

    def edits(self) -> dict[str, Edit]:
        """Every edit that counts, by its id, in the order of the source."""
        return {edit.id: edit for edit in edits.edits(edits.source_of(self.module)) if self.concerns(edit)}

    def planting(self, edit_id: str) -> Callable[[Backend], AbstractContextManager[Backend]]:
        """Plants the edit of that id, or of that name: the ``plant`` of a `Mutant`."""

        @contextmanager
        def plant(backend: Backend) -> Iterator[Backend]:
            for edit in _edits(self.module):
                if edit_id in (edit.id, edit.name):
                    with self.plant(edit) as change:
                        yield change(backend)
                    return
            message = f"{edit_id!r} is no edit of this torch's {self.file}: the mutant that plants it must name another"
            raise SuiteError(message)

        return plant


@functools.cache
def _edits(module: str) -> tuple[Edit, ...]:
    return tuple(edits.edits(edits.source_of(module)))


class Fate(enum.StrEnum):
    """What became of an edit."""

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
        listed: its entry in the list of equivalents, or empty.
    """

    id: str
    fault: str
    fate: Fate
    by: str = ""
    listed: str = ""

    def describe(self) -> str:
        return f"{self.fate}: {self.id} [{self.fault}] {self.by}".rstrip()


def equivalents(source: Source) -> dict[str, str]:
    """The edits that no check can kill on a CPU, by id or name, each with its reason.

    An entry is a reason, or a reason with a range of torch's versions: ``{"torch": "<2.13", "reason": ...}``.

    Raises:
        SuiteError: the fixture is malformed.
    """
    path = fixtures.fixture(source.equivalents)
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["edits"][source.file]
        reasons = {name: entry if isinstance(entry, str) else _in_range(entry) for name, entry in entries.items()}
    except (OSError, ValueError, KeyError) as error:
        message = f"{source.equivalents} cannot be read: {type(error).__name__}: {error}"
        raise SuiteError(message) from error
    found = {name: reason for name, reason in reasons.items() if reason is not None}
    if empty := [name for name, reason in found.items() if not reason.strip()]:
        message = f"{source.equivalents}: {empty[0]!r} gives no reason"
        raise SuiteError(message)
    return found


def _in_range(entry: dict[str, str]) -> str | None:
    """The reason of an entry, where it holds for the torch that is running."""
    import torch
    from packaging.specifiers import SpecifierSet

    return entry["reason"] if SpecifierSet(entry["torch"]).contains(torch.__version__, prereleases=True) else None


def try_every_edit(source: Source, progress: Callable[[str], object], *, only: str = "") -> Tally:
    """Try every edit of a source.

    Args:
        source: whose.
        progress: called with one line for every edit that was not simply killed, and now and then with a count.
        only: try only those whose id contains this.
    """
    began = time.perf_counter()
    chosen = [edit for name, edit in source.edits().items() if only in name]
    outcomes: list[Outcome] = []
    for outcome in _try(source, chosen):
        outcomes.append(outcome)
        if outcome.fate is not Fate.KILLED:
            progress(outcome.describe())
        if len(outcomes) % 50 == 0:
            progress(f"{len(outcomes)} of {len(chosen)} edits tried")
    return Tally(
        kind=f"syntax-tree edits of {source.file}{source.note}",
        total=len(outcomes),
        by_running=sum(outcome.fate is Fate.KILLED for outcome in outcomes),
        survived=tuple(faults(source, outcomes, partial=bool(only))),
        equivalent=tuple((outcome.id, outcome.by) for outcome in outcomes if outcome.fate is Fate.EQUIVALENT),
        seconds=time.perf_counter() - began,
    )


def faults(source: Source, outcomes: Sequence[Outcome], *, partial: bool) -> Iterator[str]:
    """One line for each edit that escaped, and for each entry of the list of equivalents that is wrong.

    Args:
        source: whose edits they are.
        outcomes: of the edits that were tried.
        partial: not all edits were.
    """
    for outcome in outcomes:
        if outcome.fate is Fate.KILLED and outcome.listed:
            killed = f"{outcome.id} is listed as equivalent, but {outcome.by} kills it"
            yield f"{killed}: remove it from {source.equivalents}"
        elif outcome.fate not in {Fate.KILLED, Fate.EQUIVALENT}:
            yield outcome.describe()
    if not partial:
        known = {outcome.listed for outcome in outcomes}
        for name in equivalents(source):
            if name not in known:
                yield f"{source.equivalents} lists {name}, which is no edit of this torch's source"


def _try(source: Source, chosen: Sequence[Edit]) -> Iterator[Outcome]:
    listed = equivalents(source)
    items = list(source.items())
    _require_health(items)
    gc.freeze()  # so that no child walks through all that torch has made
    counts: collections.Counter[str] = collections.Counter()
    for edit in chosen:
        # What has killed most so far is tried first.
        items.sort(key=lambda item: -counts[item.id])
        fate, by = _in_child(functools.partial(_hunt, source, edit, items))
        entry = next((name for name in (edit.id, edit.name) if name in listed), "")
        if fate is Fate.KILLED:
            counts[by] += 1
        elif fate is Fate.SURVIVED and entry:
            fate, by = Fate.EQUIVALENT, listed[entry]
        fault = f"line {edit.line}: {edit.before} -> {edit.after}"
        yield Outcome(id=edit.id, fault=fault, fate=fate, by=by, listed=entry)
    gc.unfreeze()


def _require_health(items: Sequence[Item]) -> None:
    """All items must hold on torch as it is. It also makes torch import here what each child would import anew."""
    for item in items:
        result = item.run()
        if result.status not in {Status.PASSED, Status.KNOWN_DEFECT}:
            message = f"the self-test needs a healthy torch to start from, but {result.describe()}"
            raise SuiteError(message)


def _hunt(source: Source, edit: Edit, items: Sequence[Item]) -> tuple[Fate, str]:
    """Run the checks on the edited source until one fails."""
    planted = source.plant(edit)
    try:
        change = planted.__enter__()
    except Exception as error:  # noqa: BLE001 - whatever the import raises
        return Fate.NOT_IMPORTED, f"{type(error).__name__}: {error}"
    try:
        for item in items:
            if kills(known_defects.judge(measure(item.check, item.case, change(item.backend)))):
                return Fate.KILLED, item.id
    finally:
        planted.__exit__(None, None, None)
    return Fate.SURVIVED, ""


def kills(result: Result) -> bool:
    """Whether a result kills an edit: it failed, by a measurement and not by a crash alone."""
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
