"""Ranks of one training: what must be the same on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_checks.audit.finding import Diagnostic, Severity
from amp_checks.monitor.journal import Recorded

_NORMS = 1e-3
"""Relative difference of a weight's norm between ranks: norms are recorded with four digits."""


def compare(ranks: Sequence[Recorded], *, sharded: bool = False) -> Iterator[Diagnostic]:
    """What differs between ranks of data-parallel training, each kind once, at its first step.

    Args:
        ranks: their records, in order.
        sharded: whether each rank holds a part of the weights: then their norms differ, and are not compared.
    """
    steps = [{one["step"]: one for one in each.records if one["kind"] == "step"} for each in ranks]
    for field, what in (("scale", "the loss scale"), ("taken", "whether the step is taken")):
        for step in sorted(set.intersection(*(set(each) for each in steps))):
            seen = [each[step][field] for each in steps]
            if len(set(seen)) > 1:
                yield _differ(step, f"{what} differs between ranks at step {step}: {', '.join(map(str, seen))}")
                break
    if sharded:
        return
    samples = [{one["step"]: one["weights"] for one in each.records if one["kind"] == "sample"} for each in ranks]
    for step in sorted(set.intersection(*(set(each) for each in samples))):
        for name in samples[0][step]:
            norms = [each[step][name]["norm"] for each in samples if name in each[step]]
            if len(norms) == len(samples) and max(norms) - min(norms) > _NORMS * max(map(abs, norms)):
                shown = ", ".join(f"{norm:g}" for norm in norms)
                yield _differ(step, f"weights differ between ranks at step {step}: norms {shown}", module=name)
                return


def _differ(step: int, message: str, module: str | None = None) -> Diagnostic:
    return Diagnostic(
        rule="ranks-part",
        severity=Severity.ERROR,
        message=message,
        remedy="start all ranks from the same state, and let one decision be made of all gradients",
        step=step,
        module=module,
    )
