"""A call set against float64, in each dtype in which it runs under autocast: the same for rows, forms and spellings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from amp_checks.core import Finding, SuiteError, bounded, exact
from amp_checks.families.ops import error
from amp_checks.families.ops.inputs import FIRST, Draw, Plan
from amp_checks.families.ops.trial import GradientTrial, Trial, unnamed
from amp_checks.torch_api.dtypes import LOW, dtype_name

TrialOf = Callable[[Plan, Draw], Trial]

DRAWS, ENOUGH = 8, 16
"""Draws of 16-bit calls, and values that an output must give in all of them: one number is drawn more often."""


def draws_after_first(trial: Trial, values: int) -> Iterator[Draw]:
    """The further draws of a 16-bit call whose smallest output holds so many values.

    A 16-bit result is judged by a mean over draws, place by place: one draw may fall on values that the wrong dtype
    holds as well. In float32 what is lost is a thousand times the bound, and one draw shows it.
    """
    count = max(DRAWS, -(-ENOUGH // max(values, 1)))
    yield from (Draw(number=number) for number in range(1, count - 1))
    # A bfloat16 kernel that computes in float16 loses values that only bfloat16 holds.
    yield Draw(number=count - 1, factor=trial.case.wide if trial.backend.low_dtype is torch.bfloat16 else 1.0)


def against_float64(trial_of: TrialOf, what: str, *, outcomes: bool = True) -> Iterator[Finding]:
    """The errors of each output (or gradient) with float32 inputs and, where that runs otherwise, with low ones.

    Args:
        trial_of: gives the trial of the call under a dtype plan, with the values of a draw.
        what: what the tensors are: ``output``, ``gradient``.
        outcomes: whether raising is a finding here; False where another check of the same case has it.
    """
    seen = set()
    for plan in (Plan.FLOAT32, Plan.LOW):
        first = trial_of(plan, FIRST)
        if first.reaches in seen:
            continue
        seen.add(first.reaches)
        prefix = "" if plan is Plan.FLOAT32 else f"{plan}: "
        if outcomes and first.comparable and not (yield from first.runs(f"{prefix}outcome")):
            continue
        if first.got.error is not None:  # said already, or the emulation lacks it, or refuses it as the device does
            continue
        yield from _of_plan(trial_of, first, f"{prefix}{what}")


def _of_plan(trial_of: TrialOf, first: Trial, what: str) -> Iterator[Finding]:
    unit = first.unit
    smallest = min((tensor.numel() for tensor in first.got.tensors if tensor.numel()), default=0)
    trials = [first]
    if unit in LOW:
        trials += [trial_of(first.plan, drawn) for drawn in draws_after_first(first, smallest)]
    for trial in trials:
        if trial.reference.error is not None:
            raise SuiteError(f"{first.case.id} does not run in float64 ({trial.reference.error}): name its `reference`")
        if trial.got.error is not None:
            yield exact(f"{what}: outcome of {trial.drawn}", actual=trial.got.error, expected=None, why=first.why)
            return
    for index in range(len(first.got.tensors)):
        pairs = [_pair(trial, index) for trial in trials]
        judged = error.judged(pairs, unit=unit, noise=first.case.noise, gradient=what.endswith("gradient"))
        for where, ratio, bound in judged:
            yield bounded(
                f"{what}[{index}]: error against float64{where} in eps of {dtype_name(unit)}",
                ratio=ratio,
                threshold=bound.value,
                why=f"{bound.unit}; healthy {bound.healthy}",
            )


def _pair(trial: Trial, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    pair = trial.got.tensors[index], trial.reference.tensors[index]
    free = trial.case.free_phase and not isinstance(trial, GradientTrial)
    actual, reference = (unnamed(tensor.abs() if free else tensor) for tensor in pair)
    return actual, reference
