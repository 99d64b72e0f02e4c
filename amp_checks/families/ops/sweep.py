"""Every op of torch's own database under a region: ``python -m amp_checks.families.ops.sweep --backend cpu-float16``.

Run as a process of its own (`amp_checks.suite.opinfo`). Prints for each op what a region changed, and which listed ops
were entered inside it.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from amp_checks import backends
from amp_checks.backends.observe import OpCall, observe
from amp_checks.core import NotEmulated, first_line
from amp_checks.records import cast_policy
from amp_checks.suite import opinfo, planting
from amp_checks.suite.opinfo import Op, Ran
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import dtype_name
from amp_checks.torch_api.numerics import same_bits

SAMPLES = 3
"""Inputs tried per op: the first, the middle and the last of the database's own that hold something."""

AS_WITHOUT = "as without autocast"
NOT_EMULATED = "not emulated"
NOTHING_RAN = "runs on no input here, with autocast or without"

_planted: list[str] = []
"""Ids of the faults planted in this process, for the process of a sweep to plant too."""


@contextmanager
def planted_in_sweeps(fault: str) -> Iterator[None]:
    """Inside, every process of a sweep plants the fault of that id before it begins."""
    _planted.append(fault)
    try:
        yield
    finally:
        _planted.pop()


def planted_fault() -> str:
    """The fault that a sweep's process must plant; empty for none."""
    return _planted[-1] if _planted else ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a region did to one op of the database.

    Attributes:
        op: its name there: ``linalg.norm``, ``norm.nuc``.
        outcome: `AS_WITHOUT`, or what changed: ``output float16 for float32``, ``raises RuntimeError: ...``.
        listed: where something changed, the ops with a recorded rule that ran inside the region, itself
            among them where it has one; on a real device `LEAVES` that ran in the low dtype.
        nondeterministic: two runs without autocast differ, so that only dtypes were compared.
    """

    op: str
    outcome: str
    listed: tuple[str, ...] = ()
    nondeterministic: bool = False


def sweep(backend: Backend, names: Sequence[str] = ()) -> Iterator[Seen]:
    """Look at every op of the database, or at those of the given names; as of `opinfo.sweep`."""
    with backend.activate():
        rules = frozenset(cast_policy.declared(backend.device_type))
        yield from opinfo.sweep(lambda op: _look(op, backend, rules), names)


def _look(op: Op, backend: Backend, rules: frozenset[str]) -> Seen:
    listed: set[str] = set()
    ran, nondeterministic, changed = False, False, ""
    for sample in op.samples(SAMPLES):
        plain = op.run(opinfo.copied(sample))
        if plain.error:
            continue
        ran = True
        got = op.run(opinfo.copied(sample), backend.region())
        if isinstance(error := got.error or got.backward_error, NotEmulated):
            return Seen(op=op.name, outcome=f"{NOT_EMULATED}: {first_line(error)}")
        same_again = not _difference(plain, op.run(opinfo.copied(sample)), values=True)
        difference = _difference(plain, got, values=same_again and op.initialised)
        if difference:
            calls = _calls(op, sample, backend)
            listed |= {call.op.removeprefix("aten::") for call in calls if _explains(call, backend, rules)}
        nondeterministic = nondeterministic or not same_again
        changed = changed or difference
    outcome = (changed or AS_WITHOUT) if ran else NOTHING_RAN
    return Seen(op=op.name, outcome=outcome, listed=tuple(sorted(listed)), nondeterministic=nondeterministic)


def _calls(op: Op, sample: Any, backend: Backend) -> list[OpCall]:
    """The ops that run when the op is called in a region."""
    seen: list[OpCall] = []

    @contextmanager
    def observed() -> Iterator[None]:
        with observe(backend) as calls, backend.region():
            try:
                yield
            finally:
                seen.extend(calls)

    op.run(opinfo.copied(sample), observed())
    return seen


LEAVES = frozenset({"convolution", "_prelu_kernel", "vdot"})
"""Leaf ops that a real device shows in the place of composites with a rule."""


def _explains(call: OpCall, backend: Backend, rules: frozenset[str]) -> bool:
    """Whether the op that ran has a rule, or stands for one that has."""
    name = call.op.removeprefix("aten::")
    return name in rules or (not backend.emulated and name in LEAVES and backend.low_dtype in call.input_dtypes)


def _difference(plain: Ran, got: Ran, *, values: bool) -> str:
    """What differs of outputs and, where there are any without autocast, of gradients; empty where nothing does."""
    backward = plain.backward_error is None
    if error := got.error or (got.backward_error if backward else None):
        return f"raises {type(error).__name__}: {first_line(error)}"
    one, other = ([*ran.outputs, *(ran.gradients if backward else ())] for ran in (plain, got))
    if len(one) != len(other):
        return f"{len(other)} tensors for {len(one)}"
    changed = ""
    for left, right in zip(one, other, strict=True):
        if left is None or right is None:
            if left is not right:
                return "a gradient is missing"
        elif left.dtype is not right.dtype:
            return f"{dtype_name(right.dtype)} for {dtype_name(left.dtype)}"
        elif values and left.layout is torch.strided and not same_bits(left, right):
            changed = "other values"
    return changed


def in_its_own_process(backend: Backend, names: Sequence[str] = (), fault: str = "") -> list[Seen]:
    """Run the sweep in a fresh interpreter.

    Args:
        backend: the AMP under test; must be of the table of backends.
        names: as for `sweep`.
        fault: id of a planted fault of the ops family, to be planted there.

    Raises:
        SuiteError: as of `opinfo.run_module`.
    """
    planted = ["--fault", fault] if fault else []
    chosen = [part for name in names for part in ("--op", name)]
    found = opinfo.run_module("amp_checks.families.ops.sweep", "--backend", backend.id, *planted, *chosen)
    return [Seen(**{**seen, "listed": tuple(seen["listed"])}) for seen in found]


def main() -> int:
    """The process's own command line."""
    parser = argparse.ArgumentParser(prog="python -m amp_checks.families.ops.sweep", description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--fault", default="")
    args = parser.parse_args()

    def document() -> list[dict[str, Any]]:
        backend = backends.backend(args.backend)
        with ExitStack() as planted:
            if args.fault:
                mutant = next(mutant for mutant in planting.mutants("ops") if mutant.id == args.fault)
                backend = planted.enter_context(mutant.plant(backend))
            return [dataclasses.asdict(found) for found in sweep(backend, args.op)]

    return opinfo.answer(document)


if __name__ == "__main__":
    raise SystemExit(main())
