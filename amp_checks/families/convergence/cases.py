"""Training tasks: AMP must train them as well as FP32. Add a task of your own as one row.

A row's ``task`` says how it trains (see `amp_checks.reference.loop`); the rest says what must come of it.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from amp_checks.reference import digits, language, recipes, scaling
from amp_checks.reference.loop import Task
from amp_checks.suite.row import Row


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConvergenceCase(Row):
    """A task, and what must come of training it.

    Attributes:
        task: what trains, the same in FP32 and AMP.
        seeds: how many runs in each precision.
        further_fp32: how many more runs in FP32 alone, for the task's own noise, which is the unit of every difference.
        first_seed: the seed of the first run; the others count on from it. Checks of one run look at this one.
        learned: both precisions must bring the validation loss below this share of what it was at first.
        most_skips: how many steps may be skipped while the loss scale settles, where there is one.
        text: what a text model must say at the end, in both precisions; None of other tasks.
        kept: the bytes that AMP keeps for backward must be below this share of FP32's; None where weights, of which
            AMP keeps copies, outweigh activations.
    """

    family: ClassVar[str] = "convergence"

    task: Task
    learned: float
    seeds: int = 5
    further_fp32: int = 5
    first_seed: int = 0
    most_skips: int = 0
    text: str | None = None
    kept: float | None = None

    @property
    def id(self) -> str:
        return f"{self.task.id}-{self.seeds}-seeds" if self.full else self.task.id


_GATE: tuple[ConvergenceCase, ...] = (
    ConvergenceCase(task=recipes.REFERENCE, learned=0.2, text=recipes.TEXT),
    ConvergenceCase(task=recipes.AS_PUBLISHED, learned=0.2, text=recipes.TEXT),
    ConvergenceCase(task=digits.MLP, learned=0.5),
    ConvergenceCase(task=digits.CNN, learned=0.5, kept=0.65),
    ConvergenceCase(task=digits.ACCUMULATED, learned=0.5),
    ConvergenceCase(task=digits.CHECKPOINTED, learned=0.5),
    ConvergenceCase(task=digits.AVERAGED, learned=0.8),
    ConvergenceCase(task=digits.GAN, learned=0.3),
    ConvergenceCase(task=language.LSTM, learned=0.8),
    ConvergenceCase(task=language.TRANSFORMER, learned=0.8, kept=0.65),
    ConvergenceCase(task=language.SPARSE, learned=0.8),
    ConvergenceCase(task=scaling.UNDERFLOW, learned=0.5, seeds=8, further_fp32=8),
    ConvergenceCase(task=scaling.OVERFLOW, learned=0.5, most_skips=10, seeds=8, further_fp32=8),
)

_ONLY_AT_THE_GATE = {
    recipes.AS_PUBLISHED.id: "a warning is read as well with few seeds",
    language.LSTM.id: "where the CPU has no 16-bit LSTM, five seeds say so as well as twenty",
}

CASES: tuple[ConvergenceCase, ...] = (
    *_GATE,
    *(
        dataclasses.replace(case, full=True, seeds=20, further_fp32=0, first_seed=100)
        for case in _GATE
        if case.id not in _ONLY_AT_THE_GATE
    ),
)
