"""The ignore list: findings a team knows and has a reason to live with, until a date.

One entry a line, fields parted by ``|``; ``#`` starts a comment::

    rule | where to look for, or * | until YYYY-MM-DD | reason

    scheduler-stepped-on-skipped-step | train.py | 2027-03-31 | the schedule is per epoch from March on
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from pathlib import Path
from typing import TYPE_CHECKING

from amp_checks.core import UsageError

if TYPE_CHECKING:
    from amp_checks.audit.finding import Diagnostic


RENAMED = {
    "raises": "program-raises", "16-bit-weights": "weights-in-16-bits", "16-bit-buffer": "buffer-in-16-bits",
    "16-bit-counter": "counter-in-16-bits", "16-bits-too-coarse": "insufficient-precision",
    "average-on-skipped-step": "average-updated-on-skipped-step",
    "scheduler-on-skipped-step": "scheduler-stepped-on-skipped-step", "buffer-poisoned": "buffer-not-finite",
    "checkpoint-lost": "checkpoint-not-restored", "constant-does-not-exist": "constant-not-representable",
    "gradients-changed-late": "gradients-modified-after-step",
    "gradients-depend-on-scale": "gradients-depend-on-loss-scale",
    "hand-scale-not-undone": "manual-loss-scale-not-undone", "scaled-by-hand": "manual-loss-scale-constant",
    "initial-scale": "initial-loss-scale-unsuitable", "kept-in-16-bits": "op-kept-in-16-bits",
    "kept-in-float32": "op-kept-in-float32", "never-updated": "parameter-never-updated",
    "no-gradient": "parameter-without-gradient", "no-loss-scaling": "loss-scaling-missing",
    "scaled-twice": "loss-scaled-twice", "non-finite-gradient": "gradient-not-finite",
    "non-finite-loss": "loss-not-finite", "outdated-weights": "cached-weights-outdated",
    "raises-on-overflow": "program-raises-on-overflow", "recomputed-in-other-dtype": "recomputation-in-other-dtype",
    "scaled-gradients-changed": "scaled-gradients-modified", "scaler-made-anew": "scaler-recreated",
    "unscaled-mid-accumulation": "gradients-unscaled-mid-accumulation", "unscaled-twice": "gradients-unscaled-twice",
    "update-missing": "scaler-update-missing", "update-without-step": "scaler-update-without-step",
    "updated-mid-accumulation": "scaler-updated-mid-accumulation", "banned-op": "op-banned",
    "mixed-dtypes": "dtypes-mixed", "trains-differently": "training-differs",
}  # fmt: skip
"""Ids of rules as they were before the first release, and as they are."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """An entry.

    Attributes:
        rule: id of the rule.
        place: what the finding's line, module or op must hold, numbers whole; ``*`` for any.
        until: the last day on which it counts.
        reason: why.
    """

    rule: str
    place: str
    until: datetime.date
    reason: str

    def matches(self, one: Diagnostic, today: datetime.date) -> bool:
        """Whether the entry is in force and means that finding."""
        return self.rule == one.rule and today <= self.until and (self.place == "*" or _holds(one.place, self.place))


def _holds(text: str, part: str) -> bool:
    """Whether it is in the text, and no number goes on at its ends: line 5 is not line 58."""
    before = r"(?<!\d)" if part[0].isdigit() else ""
    after = r"(?!\d)" if part[-1].isdigit() else ""
    return re.search(before + re.escape(part) + after, text) is not None


def load(path: Path, *, rules: frozenset[str]) -> tuple[Ignored, ...]:
    """Read a list.

    Raises:
        UsageError: it cannot be read, or a line is malformed: names file and line, what was expected, what came.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"the ignore list {path} cannot be read: {error.strerror}") from error
    return tuple(
        _entry(f"{path}:{number}", line, rules)
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#")
    )


def _entry(place: str, line: str, rules: frozenset[str]) -> Ignored:
    fields = [field.strip() for field in line.split("|")]
    if len(fields) != 4 or not all(fields):
        raise UsageError(f"{place}: an entry is `rule | place or * | YYYY-MM-DD | reason`; got {line.strip()!r}")
    rule, where, until, reason = fields
    if rule in RENAMED:
        raise UsageError(f"{place}: the rule {rule!r} is called {RENAMED[rule]!r} now")
    if rule not in rules:
        raise UsageError(f"{place}: there is no rule {rule!r}; there are {', '.join(sorted(rules))}")
    try:
        day = datetime.date.fromisoformat(until)
    except ValueError:
        raise UsageError(f"{place}: the third field is a date, YYYY-MM-DD; got {until!r}") from None
    return Ignored(rule=rule, place=where, until=day, reason=reason)


def expired(entries: tuple[Ignored, ...], today: datetime.date) -> tuple[Ignored, ...]:
    """Entries whose day has passed."""
    return tuple(entry for entry in entries if today > entry.until)
