"""Measurements that several checks of ops share."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from amp_checks.core import Backend, Finding, exact
from amp_checks.families.ops import by_hand
from amp_checks.families.ops.entry import entries
from amp_checks.families.ops.inputs import Plan
from amp_checks.families.ops.rows import OpCase
from amp_checks.records import cast_policy
from amp_checks.torch_api.numerics import dtype_name, same_bits


def why(case: OpCase, backend: Backend) -> str:
    rule = cast_policy.of(case.id, backend.device_type)
    return f"cast policy {rule} of {case.id} on {backend.device_type}"


def in_region(call: by_hand.Call, backend: Backend, *, lacks: bool = False) -> by_hand.Outcome:
    """What the call gives inside a region; ``lacks`` as for `by_hand.outcome`."""
    with backend.region():
        return by_hand.outcome(f"{call.name} inside a region", call.run, lacks=lacks)


def comparable(plan: Plan, got: by_hand.Outcome, without: by_hand.Outcome, backend: Backend) -> bool:
    """Whether the two outcomes can be set side by side.

    Not under emulation where a low or foreign dtype has no kernel on the CPU: the emulation may have one for what the
    device has, or lack it; the call by hand, which is not emulated, says nothing of either.
    """
    return not (backend.emulated and plan is not Plan.FLOAT32 and (without.error or got.error == by_hand.LACKING))


def entry_findings(
    subject: str, call: by_hand.Call, expected: by_hand.Call, backend: Backend, *, stop: bool, reason: str
) -> Iterator[Finding]:
    """Run the call inside a region and compare what reaches the op's own entry with the call by hand.

    Args:
        subject: what the findings start with.
        call: as the user writes it.
        expected: the call that its policy promises to make.
        backend: the AMP under test.
        stop: go no further than the entry (no kernel runs).
        reason: the source of the expectation.
    """
    with entries(expected.name, stop=stop) as seen, backend.region():
        got = by_hand.outcome(call.name, call.run, lacks=True)
    first = seen[0] if seen else None
    yield exact(
        f"{subject}: dtypes at the entry of {expected.name}",
        actual=", ".join(first.dtypes) if first else f"never entered ({got.error or 'no exception'})",
        expected=", ".join(dtype_name(tensor.dtype) for tensor in expected.tensors),
        why=reason,
    )
    wanted = expected.kwargs.get("dtype")
    if wanted is not None:
        yield exact(
            f"{subject}: dtype= at the entry of {expected.name}",
            actual=first.dtype_argument if first else None,
            expected=dtype_name(wanted),
            why=reason,
        )


def same_error(subject: str, got: by_hand.Outcome, without: by_hand.Outcome) -> Finding:
    """Where the call by hand raises (no kernel for that dtype here), the region raises an exception of that
    class too.
    """
    same = by_hand.kind(got.error) == by_hand.kind(without.error)
    return exact(
        subject,
        actual=without.error if same else got.error,
        expected=without.error,
        why="the same call by hand with autocast off",
    )


def same_outcome(subject: str, got: by_hand.Outcome, without: by_hand.Outcome) -> Iterator[Finding]:
    reason = "casting by hand with autocast off"
    if without.error is not None or got.error is not None:
        yield same_error(f"{subject}: outcome", got, without)
        return
    for index, (actual, expected) in enumerate(zip(got.tensors, without.tensors, strict=False)):
        yield exact(
            f"{subject}: output[{index}]",
            actual=difference(actual, expected),
            expected="the same values",
            why=reason,
        )


def difference(actual: torch.Tensor, expected: torch.Tensor) -> str:
    if actual.shape != expected.shape:
        return f"shape {tuple(actual.shape)} for {tuple(expected.shape)}"
    wide = torch.complex128 if actual.is_complex() or expected.is_complex() else torch.float64
    left, right = (by_hand.unnamed(tensor).detach().cpu().to(wide) for tensor in (actual, expected))
    if same_bits(left, right):
        return "the same values"
    different = (left != right) & ~(left.isnan() & right.isnan())
    most = (left - right).abs().max().item()
    return f"{int(different.sum())} of {left.numel()} values differ, by up to {most:.3g}"
