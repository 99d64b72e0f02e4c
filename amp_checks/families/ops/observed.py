"""The cast policy of an op as it is seen at work: told from what reaches the op's own entry."""

from __future__ import annotations

import contextlib

from amp_checks.core import Backend, CastPolicy
from amp_checks.families.ops.entry import Entry, entries
from amp_checks.families.ops.explicit import CASTABLE, Call
from amp_checks.families.ops.inputs import Plan
from amp_checks.families.ops.rows import OpCase
from amp_checks.families.ops.trial import in_region
from amp_checks.torch_api.numerics import dtype_name


def observe(case: OpCase, backend: Backend) -> CastPolicy | None:
    """What the op's rule does, told from the dtypes at its entry; None where the op cannot be called here.

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
