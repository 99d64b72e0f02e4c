"""Checks of autocast, op by op: what each cast policy promises, measured.

`checks_for` is the one place that says which checks apply to which row. Expectations come from
``fixtures/cast_policy/`` (the policy of each op on each device type) and from
`amp_checks.families.ops.by_hand` (what a policy does); none is read from the torch under test.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from amp_checks.core import Backend, Check, Finding, SuiteError, bounded, exact
from amp_checks.families.ops import by_hand, database_checks, observed, variant_checks
from amp_checks.families.ops.cases import OVERLOADS, AnyCase, BannedCase, RegistrationCase, RulesCase
from amp_checks.families.ops.database import DatabaseCase
from amp_checks.families.ops.error import bounds_of, error_of
from amp_checks.families.ops.inputs import Plan, tensors
from amp_checks.families.ops.measure import comparable, entry_findings, in_region, same_error, same_outcome, why
from amp_checks.families.ops.regions import program
from amp_checks.families.ops.regions.program import RegionCase
from amp_checks.families.ops.rows import EntryCase, OpCase
from amp_checks.families.ops.variants import Variant
from amp_checks.records import cast_policy
from amp_checks.torch_api import private
from amp_checks.torch_api.numerics import dtype_name, same_bits

BANNED_MESSAGE = "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast."


def checks_for(case: AnyCase) -> Iterator[Check]:
    match case:
        case OpCase():
            yield from _checks_for_row(case)
        case EntryCase():
            yield check_entry_dtype
        case Variant():
            yield from variant_checks.checks_for(case)
        case RegionCase():
            yield from program.checks_for(case)
        case RegistrationCase():
            yield check_registrations
        case RulesCase():
            yield check_every_rule
        case BannedCase():
            yield check_banned_op_raises
        case DatabaseCase():
            yield database_checks.check_op_database


def _checks_for_row(case: OpCase) -> Iterator[Check]:
    if not case.call:
        yield check_entry_dtype
    yield check_output_dtype
    yield check_matches_casting_by_hand
    yield check_error
    yield check_inputs_unmodified
    if not case.no_gradient:
        yield check_gradient_dtype
        yield check_gradient_matches_casting_by_hand
        yield check_gradient_error


def plans_of(case: OpCase) -> tuple[Plan, ...]:
    """The dtype plans that every row is run under: all float32, all low, and a mixed pair where it takes two
    tensors.
    """
    floating = sum(spec.dtype is None for spec in tensors((case.args, case.kwargs)))
    return (Plan.FLOAT32, Plan.LOW, Plan.LOW_FIRST) if floating > 1 else (Plan.FLOAT32, Plan.LOW)


def _must_run(case: OpCase, without: by_hand.Outcome) -> None:
    """A row whose float32 call raises even by hand, without a reason for it, would pass every check by
    measuring nothing.

    Raises:
        SuiteError: that is so; says what to change.
    """
    if without.error is not None and not case.fails:
        raise SuiteError(
            f"the row of {case.id} does not run by hand ({without.error}): give it inputs that do, "
            "or say in its field `fails` why it cannot"
        )


def _by_hand(case: OpCase, backend: Backend, plan: Plan) -> by_hand.Call:
    return by_hand.cast_by_hand(
        by_hand.call_of(case, backend, plan),
        cast_policy.of(case.id, backend.device_type),
        low=backend.low_dtype,
        enters=case.enters,
    )


def check_registrations(case: RegistrationCase, backend: Backend) -> Iterator[Finding]:
    """Every rule that this torch registers has a row with its policy, and every row's rule is registered."""
    del case
    known = set(cast_policy.declared(backend.device_type))
    found = cast_policy.registered(backend.device_type)
    source = f"fixtures/cast_policy, rules of {backend.device_type}"
    yield exact("number of rules", actual=len(found), expected=len(known), why=source)
    for name in sorted(found | known):
        yield exact(
            f"rule of {name}",
            actual="registered" if name in found else "missing from this torch",
            expected="registered" if name in known else "none: a rule that no row knows; add it to the table",
            why=source,
        )


def check_every_rule(case: RulesCase, backend: Backend) -> Iterator[Finding]:
    """Each rule does to the inputs of its op what its recorded policy says, seen at the op's own entry."""
    del case
    for name, rule in sorted(cast_policy.declared(backend.device_type).items()):
        row = OVERLOADS.get(name)
        if row is not None and (row.call or (row.device_only and backend.emulated)):
            continue  # cannot be seen at its entry here; the list of registrations holds it
        yield exact(
            f"policy of {name}",
            actual=None if row is None else observed.observe(row, backend),
            expected=rule,
            why=f"fixtures/cast_policy, rules of {backend.device_type}",
        )


def check_banned_op_raises(case: BannedCase, backend: Backend) -> Iterator[Finding]:
    """A banned op raises inside a region and says what to use instead; outside one it runs."""
    for plan in (Plan.FLOAT32, Plan.LOW):
        call = by_hand.call_of(case.op, backend, plan)
        got = in_region(call, backend)
        yield exact(
            f"{plan}: {case.op.id} inside a region",
            actual=got.error or "no exception",
            expected=f"RuntimeError: {BANNED_MESSAGE}",
            why=f"{why(case.op, backend)}; torch.amp documentation",
        )
    outside = by_hand.outcome("outside a region", by_hand.call_of(case.op, backend, Plan.FLOAT32).run)
    yield exact("outside a region", actual=outside.error, expected=None, why="the ban holds inside regions only")


def check_entry_dtype(case: OpCase | EntryCase, backend: Backend) -> Iterator[Finding]:
    """The op itself receives its inputs as its cast policy says: the dtypes at its own entry, below
    autocast.
    """
    stop = isinstance(case, EntryCase)
    case = case.op if isinstance(case, EntryCase) else case
    reason = why(case, backend)
    for plan in plans_of(case):
        call = by_hand.call_of(case, backend, plan)
        expected = _by_hand(case, backend, plan)
        yield from entry_findings(str(plan), call, expected, backend, stop=stop, reason=reason)


def check_output_dtype(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """Each tensor that the op returns has the dtype that its cast policy gives it."""
    rule = cast_policy.of(case.id, backend.device_type)
    for plan in plans_of(case):
        call = by_hand.call_of(case, backend, plan)
        got = in_region(call, backend, lacks=plan is not Plan.FLOAT32)
        without = by_hand.outcome("by hand", _by_hand(case, backend, plan).run)
        ran_in = by_hand.run_dtype(rule, [tensor.dtype for tensor in call.tensors], backend.low_dtype)
        expected = without.dtypes if ran_in is None else by_hand.output_names(case, ran_in)
        if plan is Plan.FLOAT32:
            _must_run(case, without)
        if not comparable(plan, got, without, backend):
            continue
        if without.error is not None:  # this machine has no kernel for that dtype, with autocast or without
            yield same_error(f"{plan}: outcome", got, without)
            continue
        yield exact(f"{plan}: outcome", actual=got.error, expected=None, why=f"{why(case, backend)}; it runs by hand")
        for index, (actual, wanted) in enumerate(zip(got.dtypes, expected, strict=False)):
            yield exact(f"{plan}: output[{index}].dtype", actual=actual, expected=wanted, why=why(case, backend))
        yield exact(
            f"{plan}: number of outputs",
            actual=len(got.dtypes),
            expected=len(expected),
            why="the op's schema",
        )


def check_matches_casting_by_hand(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """Inside a region the op gives, value for value, what it gives with autocast off and its casts written
    by hand.

    Values, not dtypes: those are `check_output_dtype`'s.
    """
    for plan in plans_of(case):
        got = in_region(by_hand.call_of(case, backend, plan), backend, lacks=plan is not Plan.FLOAT32)
        without = by_hand.outcome("by hand", _by_hand(case, backend, plan).run)
        if plan is Plan.FLOAT32:
            _must_run(case, without)
        if comparable(plan, got, without, backend):
            yield from same_outcome(str(plan), got, without)


def _reference(case: OpCase, backend: Backend) -> by_hand.Call:
    """The row's call in float64, with inputs already rounded to what the op receives."""
    call = by_hand.call_of(case, backend, Plan.FLOAT32)
    rule = cast_policy.of(case.id, backend.device_type)
    target = by_hand.target_dtype(rule, [tensor.dtype for tensor in call.tensors], backend.low_dtype)

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype not in by_hand.CASTABLE:
            return tensor
        return (tensor if target is None else tensor.to(target)).double()

    return call.with_tensors(widened)


def _ran_in(case: OpCase, backend: Backend) -> torch.dtype:
    rule = cast_policy.of(case.id, backend.device_type)
    dtypes = [tensor.dtype for tensor in by_hand.call_of(case, backend, Plan.FLOAT32).tensors]
    return by_hand.run_dtype(rule, dtypes, backend.low_dtype) or torch.float32


def check_error(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """The result is as near to float64 as the dtype of its policy allows.

    Ratio: ``max|out - ref64| / (eps(run dtype) * max|ref64|)``, inputs rounded beforehand to what the op
        receives.
    """
    ran_in = _ran_in(case, backend)
    bound = bounds_of(case.noise, ran_in).forward
    got = in_region(by_hand.call_of(case, backend, Plan.FLOAT32), backend)
    without = by_hand.outcome("by hand", _by_hand(case, backend, Plan.FLOAT32).run)
    _must_run(case, without)
    if without.error is not None:
        yield same_error("outcome", got, without)
        return
    yield exact("outcome", actual=got.error, expected=None, why=why(case, backend))
    reference = by_hand.outcome("float64", _reference(case, backend).run)
    for index, (actual, expected) in enumerate(zip(got.tensors, reference.tensors, strict=False)):
        if case.free_phase:
            actual, expected = actual.abs(), expected.abs()  # noqa: PLW2901 - the same measure of both
        yield bounded(
            f"output[{index}]: error against float64 in eps of {dtype_name(ran_in)}",
            ratio=error_of(by_hand.unnamed(actual), by_hand.unnamed(expected), run_dtype=ran_in),
            threshold=bound.value,
            why=f"{bound.unit}; healthy {bound.healthy}",
        )


def check_inputs_unmodified(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """The op leaves its inputs as they were: their bits and their version counters."""
    for plan in plans_of(case):
        call = by_hand.call_of(case, backend, plan)
        before = [(tensor.clone(), private.version_of(tensor)) for tensor in call.tensors]
        in_region(call, backend, lacks=True)
        for index, (tensor, (kept, version)) in enumerate(zip(call.tensors, before, strict=True)):
            same = same_bits(by_hand.unnamed(tensor), by_hand.unnamed(kept)) and private.version_of(tensor) == version
            yield exact(
                f"{plan}: input[{index}] afterwards",
                actual="unmodified" if same else "modified",
                expected="unmodified",
                why="an out-of-place op writes to no input",
            )


def check_gradient_dtype(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """Gradients of float32 leaves are float32, whatever the op ran in."""
    got, without = _gradients(case, backend)
    _must_run(case, without)
    if without.error is not None:
        yield same_error("outcome", got, without)
        return
    yield exact("outcome", actual=got.error, expected=None, why="it has gradients by hand")
    for index, gradient in enumerate(got.tensors):
        yield exact(
            f"gradient[{index}].dtype",
            actual=dtype_name(gradient.dtype),
            expected="float32",
            why="a gradient has the dtype of its leaf",
        )


def check_gradient_matches_casting_by_hand(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """Gradients through the op equal, value for value, those through the same casts written by hand."""
    got, without = _gradients(case, backend)
    _must_run(case, without)
    yield from same_outcome("gradient", got, without)


def check_gradient_error(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """Gradients are as near to those of float64 as the dtype of the op's policy allows; unit as for
    `check_error`.
    """
    ran_in = _ran_in(case, backend)
    bound = bounds_of(case.noise, ran_in).gradient
    got, without = _gradients(case, backend)
    _must_run(case, without)
    if without.error is not None:
        yield same_error("outcome", got, without)
        return
    yield exact("outcome", actual=got.error, expected=None, why="it has gradients by hand")
    reference = by_hand.gradients(case, _reference(case, backend))
    for index, (actual, expected) in enumerate(zip(got.tensors, reference.tensors, strict=False)):
        yield bounded(
            f"gradient[{index}]: error against float64 in eps of {dtype_name(ran_in)}",
            ratio=error_of(by_hand.unnamed(actual), by_hand.unnamed(expected), run_dtype=ran_in),
            threshold=bound.value,
            why=f"{bound.unit}; healthy {bound.healthy}",
        )


def _gradients(case: OpCase, backend: Backend) -> tuple[by_hand.Outcome, by_hand.Outcome]:
    """Gradients of float32 leaves through a region, and through the same casts by hand with autocast off."""
    call = by_hand.call_of(case, backend, Plan.FLOAT32)
    rule = cast_policy.of(case.id, backend.device_type)

    def cast(leafy: by_hand.Call) -> by_hand.Call:
        return by_hand.cast_by_hand(leafy, rule, low=backend.low_dtype, enters=case.enters)

    return by_hand.gradients(case, call, around=backend.region), by_hand.gradients(case, call, prepare=cast)
