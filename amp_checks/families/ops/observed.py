"""The cast policy of an op as recorded, as registered, and as seen at work: by what reaches the op's own entry."""

from __future__ import annotations

import contextlib
import dataclasses

from amp_checks.core import CastPolicy, exact
from amp_checks.families.ops.cases import OVERLOADS
from amp_checks.families.ops.entry import Entry, entries
from amp_checks.families.ops.explicit import CASTABLE, Call
from amp_checks.families.ops.inputs import Plan
from amp_checks.families.ops.rows import OpCase
from amp_checks.families.ops.trial import in_region
from amp_checks.records import cast_policy, known_defects
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import dtype_name


def observe(case: OpCase, backend: Backend) -> CastPolicy | None:
    """What the op's rule does, inferred from the dtypes at its entry; None where the op cannot be called here.

    The op is stopped at its entry: no kernel runs, so the device need not be there.
    """
    seen: dict[Plan, Entry] = {}
    for plan in (Plan.FLOAT32, Plan.LOW, Plan.LOW_FIRST):
        call = Call.of(case, backend, plan)
        names = filter(None, (case.id, case.enters))
        with contextlib.ExitStack() as probes:
            logs = {name: probes.enter_context(entries(name, stop=True)) for name in names}
            got = in_region(call, backend)
        if logs.get(case.enters):
            return CastPolicy.FP32_APPEND_DTYPE
        if not logs[case.id]:
            return CastPolicy.BANNED if "unsafe to autocast" in (got.error or "") else None
        seen[plan] = logs[case.id][0]
    if seen[Plan.FLOAT32].dtype_argument == "float32":
        return CastPolicy.FP32_SET_OPT_DTYPE
    low = dtype_name(backend.low_dtype)
    floats = {plan: {name for name in entry.dtypes if name in _CASTABLE} for plan, entry in seen.items()}
    if floats[Plan.FLOAT32] == {low}:
        return CastPolicy.LOWER_PRECISION_FP
    if floats[Plan.LOW] == {"float32"}:
        return CastPolicy.FP32
    return CastPolicy.PROMOTE if floats[Plan.LOW_FIRST] == {"float32"} else CastPolicy.UNLISTED


_CASTABLE = frozenset(dtype_name(dtype) for dtype in CASTABLE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One op on one device type.

    Attributes:
        op: the overload, ``softmax.int``.
        declared: its recorded policy; None: no rule is recorded.
        registered: whether this torch registers a rule for it.
        observed: what the rule did with its inputs; None: it cannot be seen here, as ``unseen`` says.
        unseen: why it cannot.
    """

    op: str
    declared: CastPolicy | None
    registered: bool
    observed: CastPolicy | None
    unseen: str = ""

    @property
    def agrees(self) -> bool:
        """Recorded, registered, and seen to do what is recorded (or not to be seen here)."""
        return self.registered and self.declared is not None and self.observed in (self.declared, None)


def rules(backend: Backend) -> tuple[Rule, ...]:
    """Every op of a backend's device type that is recorded or registered, in alphabetical order."""
    declared = cast_policy.declared(backend.device_type)
    registered = cast_policy.registered(backend.device_type)
    found = []
    with backend.activate():
        for name in sorted(set(declared) | registered):
            case = OVERLOADS.get(name)
            unseen = _unseen(case, backend)
            found.append(
                Rule(
                    op=name,
                    declared=declared.get(name),
                    registered=name in registered,
                    observed=None if unseen or case is None else observe(case, backend),
                    unseen=unseen,
                )
            )
    return tuple(found)


def _unseen(case: OpCase | None, backend: Backend) -> str:
    if case is None:
        return "no row gives its inputs"
    if case.call:
        return "named tensors cannot be looked at at an op's entry"
    return case.device_only if backend.emulated else ""


def known_defect(backend: Backend, rule: Rule) -> str:
    """Id of the known defect of `check_every_rule` that says what the rule does there; empty where there is none."""
    finding = exact(f"policy of {rule.op}", actual=rule.observed, expected=rule.declared, why="fixtures/cast_policy")
    for defect in known_defects.registered():
        if defect.names(check="check_every_rule", case="rules", backend=backend.id) and any(
            expected.matches(finding) for expected in defect.expects
        ):
            return defect.id
    return ""
