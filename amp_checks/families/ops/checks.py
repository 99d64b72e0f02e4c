"""Checks of autocast, op by op: what each cast policy promises, measured.

`checks_for` is the one place that says which checks apply to which row. Expectations come from
``fixtures/cast_policy/`` (the policy of each op on each device type) and from
`amp_checks.families.ops.explicit` (what a policy does); none is read from the torch under test.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_checks.core import Check, Finding, exact
from amp_checks.families.ops import accuracy, database, explicit, observed, variants
from amp_checks.families.ops.cases import OVERLOADS, AnyCase, BannedCase, RegistrationCase, RulesCase
from amp_checks.families.ops.database import DatabaseCase
from amp_checks.families.ops.explicit import Call
from amp_checks.families.ops.inputs import Plan, tensors
from amp_checks.families.ops.regions import program
from amp_checks.families.ops.regions.program import RegionCase
from amp_checks.families.ops.rows import EntryCase, OpCase
from amp_checks.families.ops.trial import GradientTrial, Trial, in_region, outcome, unnamed
from amp_checks.families.ops.variants import Variant
from amp_checks.records import cast_policy
from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.numerics import same_bits

BANNED_MESSAGE = "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast."


def checks_for(case: AnyCase) -> Iterator[Check]:
    match case:
        case OpCase():
            yield from _checks_for_row(case)
        case EntryCase():
            yield check_entry_dtype
        case Variant():
            yield from variants.checks_for(case)
        case RegionCase():
            yield from program.checks_for(case)
        case RegistrationCase():
            yield check_registrations
        case RulesCase():
            yield check_every_rule
        case BannedCase():
            yield check_banned_op_raises
        case DatabaseCase():
            yield database.check_op_database


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


def _trials(case: OpCase, backend: Backend) -> Iterator[Trial]:
    return (Trial(case, backend, plan) for plan in plans_of(case))


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
        yield exact(
            f"{plan}: {case.op.id} inside a region",
            actual=in_region(Call.of(case.op, backend, plan), backend).error or "no exception",
            expected=f"RuntimeError: {BANNED_MESSAGE}",
            why=f"{Trial(case.op, backend).why}; torch.amp documentation",
        )
    outside = outcome(Call.of(case.op, backend).run)
    yield exact("outside a region", actual=outside.error, expected=None, why="the ban holds inside regions only")


def check_entry_dtype(case: OpCase | EntryCase, backend: Backend) -> Iterator[Finding]:
    """The op itself receives its inputs as its cast policy says: the dtypes at its own entry, below autocast."""
    stop = isinstance(case, EntryCase)
    for trial in _trials(case.op if isinstance(case, EntryCase) else case, backend):
        yield from trial.at_entry(stop=stop)


def check_output_dtype(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """Each tensor that the op returns has the dtype that its cast policy gives it."""
    for trial in _trials(case, backend):
        plan, ran_in = trial.plan, trial.ran_in
        if not (trial.comparable and (yield from trial.runs(f"{plan}: outcome"))):
            continue
        expected = trial.without.dtypes if ran_in is None else explicit.output_names(case, ran_in)
        for index, (actual, wanted) in enumerate(zip(trial.got.dtypes, expected, strict=False)):
            yield exact(f"{plan}: output[{index}].dtype", actual=actual, expected=wanted, why=trial.why)
        yield exact(
            f"{plan}: number of outputs", actual=len(trial.got.dtypes), expected=len(expected), why="the op's schema"
        )


def check_matches_casting_by_hand(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """Inside a region the op gives, value for value, what it gives with autocast off and explicit casts.

    Values, not dtypes: those are `check_output_dtype`'s.
    """
    for trial in _trials(case, backend):
        if trial.comparable:
            yield from trial.same_values(str(trial.plan))


def check_error(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """The result is as near to float64 as the dtype of its policy allows, its inputs rounded beforehand to what the op
    receives; with float32 inputs and, where they make it run otherwise, with low ones. Units as of `error`.
    """
    yield from accuracy.against_float64(lambda plan, drawn: Trial(case, backend, plan, drawn=drawn), "output")


def check_gradient_error(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """Gradients are as near to those of float64 as the dtype of the op's policy allows; unit as for `check_error`."""
    yield from accuracy.against_float64(lambda plan, drawn: GradientTrial(case, backend, plan, drawn=drawn), "gradient")


def check_inputs_unmodified(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """The op leaves its inputs as they were: their bits and their version counters."""
    for plan in plans_of(case):
        call = Call.of(case, backend, plan)
        before = [(tensor.clone(), private.version_of(tensor)) for tensor in call.tensors]
        in_region(call, backend, lacks=True)
        for index, (tensor, (kept, version)) in enumerate(zip(call.tensors, before, strict=True)):
            same = same_bits(unnamed(tensor), unnamed(kept)) and private.version_of(tensor) == version
            yield exact(
                f"{plan}: input[{index}] afterwards",
                actual="unmodified" if same else "modified",
                expected="unmodified",
                why="an out-of-place op writes to no input",
            )


def check_gradient_dtype(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """Gradients of float32 leaves are float32, whatever the op ran in."""
    trial = GradientTrial(case, backend)
    if not (yield from trial.runs()):
        return
    for index, dtype in enumerate(trial.got.dtypes):
        yield exact(
            f"gradient[{index}].dtype", actual=dtype, expected="float32", why="a gradient has the dtype of its leaf"
        )


def check_gradient_matches_casting_by_hand(case: OpCase, backend: Backend) -> Iterator[Finding]:
    """Gradients through the op equal, value for value, those through the same explicit casts."""
    yield from GradientTrial(case, backend).same_values("gradient")
