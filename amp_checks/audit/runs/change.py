"""What a run does otherwise than the program: a named change, made around building it and around its loop."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from amp_checks.audit.case import Training
from amp_checks.audit.watching.watch import Watch


class Change:
    """A change; two that are equal do the same. Each method changes nothing by default.

    Attributes:
        words: what it changes, for whoever waits for the run; with the names of its fields in braces.
        may_exit: whether a program that exits does so because of it.
    """

    words: ClassVar[str]
    may_exit: ClassVar[bool] = False

    def around(self, watch: Watch) -> AbstractContextManager[object]:
        """Entered before the program is built, left when its loop has ended."""
        del watch
        return nullcontext()

    def prepared(self, training: Training) -> Training:
        """What is trained, of what was built."""
        return training

    def around_loop(self, watch: Watch) -> AbstractContextManager[object]:
        """Entered before the loop, left when it has ended."""
        del watch
        return nullcontext()
