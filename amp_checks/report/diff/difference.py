"""What differs between two documents."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference.

    Attributes:
        item: id of the item, or the name of a value of the environment.
        subject: what differs within it: a finding's subject, or empty.
        old, new: both sides for a reader; None where a side has nothing.
        worse: whether it counts as worse.
    """

    item: str
    subject: str = ""
    old: str | None
    new: str | None
    worse: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """All that differs, each list sorted by item.

    Attributes:
        items: how many items both documents hold.
        environment: values of the environment.
        appeared, vanished: items that one document holds alone, with their status.
        verdicts: items whose status changed.
        failures: failed findings that appeared (old is None) or vanished (new is None) in items that both hold.
        expectations: findings on exact properties whose expected value changed: rules that changed.
        drift: error ratios that moved, in shares of their thresholds.
        times: items that became much slower or faster.
        seconds: wall time of the items that both hold, old and new.
        incomplete: names of the documents of runs that did not finish.
    """

    items: int
    environment: Sequence[Change]
    appeared: Sequence[Change]
    vanished: Sequence[Change]
    verdicts: Sequence[Change]
    failures: Sequence[Change]
    expectations: Sequence[Change]
    drift: Sequence[Change]
    times: Sequence[Change]
    seconds: tuple[float, float]
    incomplete: Sequence[str]

    @property
    def changes(self) -> list[Change]:
        """What a verdict can depend on: neither time nor environment."""
        lists = (self.appeared, self.vanished, self.verdicts, self.failures, self.expectations, self.drift)
        return [change for some in lists for change in some]

    @property
    def worse(self) -> int:
        """How many items are worse; one cause may show as several changes of an item."""
        return len({change.item for change in self.changes if change.worse})

    def verdict(self) -> str:
        """The one line that a person reads first."""
        if self.worse:
            return f"WORSE: {self.worse} items are worse ({len(self.changes)} differences in all)"
        if self.incomplete:
            return f"NO VERDICT: {' and '.join(self.incomplete)} did not finish"
        if self.changes:
            return f"not worse: {len(self.changes)} differences, none for the worse"
        return f"the same: {self.items} items, no difference"
