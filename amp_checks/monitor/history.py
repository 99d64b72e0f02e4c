"""What rules over time judge by: a window of the newest records, and what has held since the start."""

from __future__ import annotations

from collections import Counter, deque

from amp_checks.audit.finding import Diagnostic
from amp_checks.monitor.journal import Record

WINDOW = 200
"""Steps that are kept."""
SAMPLES = 24
"""Samples that are kept, beside the first."""
FIRST = 3
"""Samples that say what is usual; those of an alert are not among them."""


class History:
    """The run so far.

    Attributes:
        steps: the newest step records.
        samples: the newest records of regular samples; ``first``: the first of them.
        nonfinite: the newest records of values that are not finite.
        counts: steps, skipped ones, and what rules count.
        good: the largest loss scale at which a step of the window was taken; 0 before the first.
        findings: what was found.
    """

    def __init__(self) -> None:
        self.steps: deque[Record] = deque(maxlen=WINDOW)
        self.samples: deque[Record] = deque(maxlen=SAMPLES)
        self.first: list[Record] = []
        self.nonfinite: deque[Record] = deque(maxlen=8)
        self.counts: Counter[str] = Counter()
        self.good = 0.0
        self.settled_at: int | None = None
        self.findings: list[Diagnostic] = []

    def add(self, record: Record) -> None:
        """Take one more record."""
        if record["kind"] == "step":
            self.steps.append(record)
            self.counts["steps"] += 1
            self.counts["skipped"] += not record["taken"]
            if record["taken"] and record["scale"] is not None and self.settled_at is None:
                self.settled_at = record["step"]
        elif record["kind"] == "nonfinite":
            self.nonfinite.append(record)
        elif record["kind"] == "sample" and record["regular"]:
            if len(self.first) < FIRST and self.settled:
                self.first.append(record)
            self.samples.append(record)

    @property
    def settled(self) -> bool:
        """Whether a step was taken: before that, a loss scale comes down to where it can work."""
        return self.counts["steps"] > self.counts["skipped"]
