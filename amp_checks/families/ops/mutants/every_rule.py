"""Every rule of every device type, broken one at a time: removed, turned to another policy, its special behaviour lost.

A fault counts as caught by running when a check that called the op measured the difference, first of all at the op's
own entry. Faults that only the list of registrations shows are counted apart, and named with the reason.
"""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from amp_checks import backends
from amp_checks.core import CastPolicy, Status, SuiteError
from amp_checks.families.ops import checks
from amp_checks.families.ops.cases import CASES, OVERLOADS, BannedCase, RegistrationCase
from amp_checks.families.ops.mutants import faults
from amp_checks.families.ops.rows import EntryCase, OpCase
from amp_checks.families.ops.variants import ExplicitDtypeCase, PromotionCase, Variant
from amp_checks.records import cast_policy
from amp_checks.suite import planting
from amp_checks.suite.measure import measure
from amp_checks.suite.planting import Mutant, Tally
from amp_checks.torch_api.backend import Backend

Progress = Callable[[str], None]
RowCase = OpCase | EntryCase | BannedCase | Variant

REMOVED, TO_FP32, TO_LOW = "rule removed", "turned to fp32", "turned low"
DTYPE_FORCED, NARROWEST, TAKES_ANY = "dtype= overridden", "narrowest dtype wins", "other low dtype taken"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuleFault:
    """One rule of one device type, broken in one way."""

    op: str
    policy: CastPolicy
    kind: str
    rule: faults.Rule


def faults_of(name: str, rule: CastPolicy) -> Iterator[RuleFault]:
    """The ways to break the rule of an op with that policy that change what it does."""
    ways: dict[str, faults.Rule] = {REMOVED: faults.removed}
    if not OVERLOADS[name].call:  # a kernel in Python cannot be handed named tensors
        if rule is not CastPolicy.FP32:
            ways[TO_FP32] = faults.casting_to(name, faults.float32)
        if rule is not CastPolicy.LOWER_PRECISION_FP:
            ways[TO_LOW] = faults.casting_to(name, faults.low)
        if rule is CastPolicy.FP32_SET_OPT_DTYPE:
            ways[DTYPE_FORCED] = faults.forcing_float32(name)
        if rule is CastPolicy.PROMOTE:
            ways[NARROWEST] = faults.promoting(name, widest=False)
            ways[TAKES_ANY] = faults.promoting(name, refuses=False)
    for kind, broken in ways.items():
        yield RuleFault(op=name, policy=rule, kind=kind, rule=broken)


def case_for(name: str, kind: str, backend: Backend) -> RowCase | None:
    """The case that shows a fault of that kind on that backend; None where nothing of the op runs there."""
    if kind == DTYPE_FORCED:
        return ExplicitDtypeCase(op=OVERLOADS[name])
    if kind in (NARROWEST, TAKES_ANY):
        return PromotionCase(op=OVERLOADS[name])
    for case in CASES:
        if not isinstance(case, OpCase | EntryCase | BannedCase):
            continue
        if name == (case.id if isinstance(case, OpCase) else case.op.id) and case.runs_on(backend):
            return case
    return None


@dataclasses.dataclass(slots=True)
class _Count:
    total: int = 0
    by_running: int = 0
    by_list: list[str] = dataclasses.field(default_factory=list)
    survived: list[str] = dataclasses.field(default_factory=list)
    entry_alone: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


def break_every_rule(progress: Progress, chosen: tuple[Backend, ...] = ()) -> Iterator[Tally]:
    """One tally per device type, kind of fault and policy; names of the hard cases go to ``progress``."""
    for backend in chosen or backends.one_per_device_type():
        counts: dict[tuple[str, CastPolicy], _Count] = defaultdict(_Count)
        for name, rule in sorted(cast_policy.declared(backend.device_type).items()):
            for fault in faults_of(name, rule):
                _try(fault, case_for(name, fault.kind, backend), backend, counts[fault.kind, rule])
        for (kind, rule), count in sorted(counts.items()):
            yield Tally(
                kind=f"{kind}, {backend.device_type}, {rule}",
                total=count.total,
                by_running=count.by_running,
                by_list=len(count.by_list),
                survived=tuple(count.survived),
                entry_alone=tuple(count.entry_alone),
                seconds=count.seconds,
            )
            where = f"{kind} on {backend.id}, {rule}"
            if count.entry_alone:
                progress(f"{where}: no difference but at the op's own entry: {', '.join(count.entry_alone)}")
            for line in count.by_list:
                progress(f"{where}: by the list alone: {line}")


def _try(fault: RuleFault, case: RowCase | None, backend: Backend, count: _Count) -> None:
    began = time.perf_counter()
    count.total += 1
    mutant = Mutant(
        id=f"{fault.kind} {fault.op}",
        family="ops",
        fault=f"{fault.kind}: {fault.op}",
        plant=faults.with_rule(fault.op, fault.rule),
        case=fault.op,
        killed_by=(),
    )
    caught = [] if case is None else _killers(mutant, case, backend, both=fault.kind == REMOVED)
    if caught:
        count.by_running += 1
        alone = caught == [checks.check_entry_dtype.__name__] and not isinstance(case, EntryCase)
        if alone and fault.kind == REMOVED:
            count.entry_alone.append(fault.op)
    elif _killers(mutant, RegistrationCase(), backend, both=False):
        count.by_list.append(f"{fault.op} ({OVERLOADS[fault.op].device_only or 'no check shows it'})")
    else:
        count.survived.append(f"{fault.kind}: {fault.op} on {backend.id}")
    count.seconds += time.perf_counter() - began


def _killers(mutant: Mutant, case: RowCase | RegistrationCase, backend: Backend, *, both: bool) -> list[str]:
    """Names of checks that catch the fault: the first that does and, where ``both``, the first beyond the entry too."""
    caught: list[str] = []
    for check in checks.checks_for(case):
        with mutant.plant(backend) as faulty:
            result = measure(check, case, faulty)
        if result.status is Status.ERROR:
            raise SuiteError(f"{mutant.fault}: {result.describe()}")
        if planting.caught(mutant, result):
            caught.append(check.__name__)
            if not both or check is not checks.check_entry_dtype:
                return caught
    return caught
