"""Checks of the other ways to call an op: every dtype, nested regions, ``dtype=``, ``out=``, in place, as
users write it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from amp_checks.core import Backend, CastPolicy, Check, Finding, exact
from amp_checks.families.ops import by_hand
from amp_checks.families.ops.by_hand import Call
from amp_checks.families.ops.entry import entries
from amp_checks.families.ops.inputs import Plan, make
from amp_checks.families.ops.measure import comparable, entry_findings, in_region, same_error, same_outcome, why
from amp_checks.families.ops.variants import (
    DtypesCase,
    ExplicitDtypeCase,
    NestingCase,
    PromotionCase,
    SpellingCase,
    UncastFormCase,
    Variant,
)
from amp_checks.records import cast_policy
from amp_checks.torch_api.numerics import dtype_name

REFUSED = "Unexpected floating ScalarType in at::autocast::prioritize"
"""How ``promote`` refuses a 16-bit float other than the region's."""

PLANS = (
    Plan.OTHER,
    Plan.FLOAT64,
    Plan.INT64,
    Plan.COMPLEX64,
    Plan.FLOAT32_FIRST,
    Plan.LOW_OTHER,
    Plan.DOUBLE_FIRST,
)
"""The dtype plans that `amp_checks.families.ops.checks` leaves to a full run."""


def checks_for(case: Variant) -> Iterator[Check]:
    match case:
        case DtypesCase():
            yield check_every_dtype
        case NestingCase():
            yield check_nested_regions
        case ExplicitDtypeCase():
            yield check_explicit_dtype
        case PromotionCase():
            yield check_promotes_to_widest
            yield check_promotion_refuses_other_low_dtype
        case UncastFormCase():
            yield check_form_is_not_cast
        case SpellingCase():
            yield check_spelling_is_cast


def _policy(case: Variant, backend: Backend) -> CastPolicy:
    return cast_policy.of(case.op.id, backend.device_type)


def _hand(case: Variant, backend: Backend, call: Call) -> Call:
    return by_hand.cast_by_hand(call, _policy(case, backend), low=backend.low_dtype, enters=case.op.enters)


def _refuses(case: Variant, backend: Backend, call: Call) -> bool:
    """Whether the op's rule promotes and finds a 16-bit float that is not the region's."""
    lows = {tensor.dtype for tensor in call.tensors} & set(by_hand.HALVES)
    return _policy(case, backend) is CastPolicy.PROMOTE and bool(lows - {backend.low_dtype})


def check_every_dtype(case: DtypesCase, backend: Backend) -> Iterator[Finding]:
    """Over every dtype plan, the op receives what its policy says and gives what it gives with its casts by hand."""
    for plan in PLANS:
        call = by_hand.call_of(case.op, backend, plan)
        if _refuses(case, backend, call):
            continue
        expected = _hand(case, backend, call)
        without = by_hand.outcome("by hand", expected.run)
        got = in_region(by_hand.call_of(case.op, backend, plan), backend, lacks=True)
        if not comparable(plan, got, without, backend):
            continue
        if without.error is not None:
            yield same_error(f"{plan}: outcome", got, without)
            continue
        yield exact(
            f"{plan}: output dtypes",
            actual=got.error or ", ".join(got.dtypes),
            expected=", ".join(without.dtypes),
            why=why(case.op, backend),
        )
        yield from same_outcome(str(plan), got, without)


def check_nested_regions(case: NestingCase, backend: Backend) -> Iterator[Finding]:
    """The rule holds inside a region, not in a disabled one inside it, and again in an enabled one inside that."""
    plain = by_hand.outcome("outside", by_hand.call_of(case.op, backend, Plan.FLOAT32).run)
    cast = by_hand.outcome("by hand", _hand(case, backend, by_hand.call_of(case.op, backend, Plan.FLOAT32)).run)

    def here() -> by_hand.Outcome:
        return by_hand.outcome(case.op.id, by_hand.call_of(case.op, backend, Plan.FLOAT32).run)

    with backend.region():
        on = here()
        with backend.region(enabled=False):
            off_inside = here()
            with backend.region():
                on_inside_off = here()
            off_again = here()
        on_again = here()
    after = here()
    for name, got, expected in (
        ("on", on, cast),
        ("off inside on", off_inside, plain),
        ("on inside off inside on", on_inside_off, cast),
        ("off again", off_again, plain),
        ("on again", on_again, cast),
        ("outside again", after, plain),
    ):
        yield exact(
            f"{name}: output dtypes",
            actual=", ".join(got.dtypes) or got.error,
            expected=", ".join(expected.dtypes) or expected.error,
            why="nesting of regions, torch.autocast documentation",
        )


def check_explicit_dtype(case: ExplicitDtypeCase, backend: Backend) -> Iterator[Finding]:
    """A ``dtype=`` that the user gives is the one that the op gets and returns; autocast does not override it."""
    for wanted in (backend.low_dtype, torch.float32, torch.float64):
        for plan in (Plan.FLOAT32, Plan.LOW):
            call = by_hand.call_of(case.op, backend, plan)
            call.kwargs["dtype"] = wanted
            without = by_hand.outcome("by hand", _hand(case, backend, call).run)
            got = in_region(call, backend, lacks=plan is not Plan.FLOAT32)
            if not comparable(plan, got, without, backend):
                continue
            subject = f"{plan}: dtype={dtype_name(wanted)}"
            if without.error is not None:
                yield same_error(f"{subject}: outcome", got, without)
                continue
            yield exact(
                f"{subject}: output dtype",
                actual=got.error or ", ".join(got.dtypes),
                expected=dtype_name(wanted),
                why="an explicit dtype= is respected, torch.amp documentation",
            )
            yield from same_outcome(subject, got, without)


def check_promotes_to_widest(case: PromotionCase, backend: Backend) -> Iterator[Finding]:
    """Any float32 input: all run in float32; only low ones: in the low dtype; float64 is no part of the rule."""
    for plan in (Plan.FLOAT32, Plan.LOW, Plan.LOW_FIRST, Plan.FLOAT32_FIRST, Plan.DOUBLE_FIRST, Plan.INT64):
        call = by_hand.call_of(case.op, backend, plan)
        yield from entry_findings(
            str(plan), call, _hand(case, backend, call), backend, stop=True, reason=why(case.op, backend)
        )


def check_promotion_refuses_other_low_dtype(case: PromotionCase, backend: Backend) -> Iterator[Finding]:
    """``promote`` raises on a 16-bit float other than the region's, and says so."""
    for plan in (Plan.OTHER, Plan.LOW_OTHER):
        got = in_region(by_hand.call_of(case.op, backend, plan), backend)
        yield exact(
            f"{plan}: outcome",
            actual="refused" if REFUSED in (got.error or "") else f"{got.error or ', '.join(got.dtypes)}",
            expected="refused",
            why=f"{why(case.op, backend)}: {REFUSED}",
        )


def check_form_is_not_cast(case: UncastFormCase, backend: Backend) -> Iterator[Finding]:
    """``out=`` and in-place forms run in the dtypes they are given: inside a region as outside one."""

    def run() -> Callable[[], Any]:
        call = by_hand.call_of(case.op, backend, Plan.FLOAT32)
        if case.form.partition(".")[0].endswith("_"):
            return Call(name=case.form, args=call.args, kwargs=call.kwargs).run
        with backend.region(enabled=False):
            shaped = by_hand.outcome("shape", call.run)
        given = {"out": torch.zeros_like(shaped.tensors[0]).detach()} if shaped.tensors else {}
        return Call(name=case.form, args=call.args, kwargs={**call.kwargs, **given}).run

    without = by_hand.outcome("outside a region", run())
    function = run()
    with backend.region():
        got = by_hand.outcome(f"{case.form} inside a region", function)
    reason = "out= and in-place forms are not autocast, torch.amp documentation"
    if without.error is not None:
        yield same_error("outcome", got, without)
        return
    yield exact(
        "output dtypes",
        actual=got.error or ", ".join(got.dtypes),
        expected=", ".join(without.dtypes),
        why=reason,
    )
    yield from same_outcome("out", got, without)


def check_spelling_is_cast(case: SpellingCase, backend: Backend) -> Iterator[Finding]:
    """Written as users write it, the op reaches the rule of its overload: dtypes at the entry and of the outputs."""
    own = (case.op.args if case.args is None else case.args, case.kwargs or case.op.kwargs)
    function = _resolve(case.path)
    args, kwargs = make(own, plan=Plan.FLOAT32, low=backend.low_dtype, device=backend.device_type, seed=case.id)
    rule = _policy(case, backend)
    with entries(case.op.enters or case.op.id) as seen, backend.region():
        got = by_hand.outcome(case.path, lambda: function(*args, **kwargs))
    yield exact(
        f"{case.op.id} reached",
        actual="yes" if seen else f"no ({got.error or 'no exception'})",
        expected="yes",
        why=f"{case.path} is {case.op.id}",
    )
    floats = [name for name in (seen[0].dtypes if seen else ()) if name in ("float16", "bfloat16", "float32")]
    target = by_hand.target_dtype(rule, [torch.float32], backend.low_dtype) or torch.float32
    yield exact(
        "dtypes at its entry",
        actual=", ".join(sorted(set(floats))),
        expected=dtype_name(target),
        why=why(case.op, backend),
    )
    ran_in = by_hand.run_dtype(rule, [torch.float32], backend.low_dtype) or torch.float32
    yield exact(
        "output dtypes",
        actual=got.error or ", ".join(got.dtypes),
        expected=", ".join(by_hand.output_names(case.op, ran_in)),
        why=why(case.op, backend),
    )


def _resolve(path: str) -> Callable[..., Any]:
    parts = path.split(".")
    found: Any = importlib.import_module(parts[0])
    for part in parts[1:]:
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]
