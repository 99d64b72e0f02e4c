"""A probe: a dispatch mode that records ops of one iteration, and listens to the run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from torch.utils._python_dispatch import TorchDispatchMode

from amp_checks.audit.watching.state import Listener, RunState

Result = TypeVar("Result")


class Recorder(TorchDispatchMode, Listener, ABC, Generic[Result]):
    """Records that iteration of a run."""

    def __init__(self, state: RunState, step: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = state
        self._step = step
        state.listeners.append(self)

    @abstractmethod
    def result(self) -> Result:
        """What was recorded, once the run is over."""
