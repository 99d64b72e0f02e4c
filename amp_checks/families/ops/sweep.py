"""Every op of torch's own database under a region: ``python -m amp_checks.families.ops.sweep --backend cpu-float16``.

Run as a process of its own: importing that database freezes torch's global flags, which must not happen where users'
code runs. Prints one JSON document: for each op what a region changed, and which listed ops were entered inside it.
Needs ``expecttest`` (``pip install 'amp-checks[opinfo]'``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from amp_checks import backends
from amp_checks.backends.observe import OpCall, observe
from amp_checks.core import Backend, NotEmulated, SuiteError, first_line
from amp_checks.records import cast_policy
from amp_checks.suite import planting
from amp_checks.torch_api.numerics import dtype_name, same_bits

SAMPLES = 3
"""Inputs tried per op: the first, the middle and the last of the database's own."""

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


UNSTEADY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
"""Ops whose values are whatever the memory held."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a region did to one op of the database.

    Attributes:
        op: its name there: ``linalg.norm``, ``norm.nuc``.
        outcome: `AS_WITHOUT`, or what changed: ``output float16 for float32``, ``raises RuntimeError: ...``.
        listed: where something changed, the ops with a recorded rule that ran inside the region, itself
            among them where it has one; on a real device `LEAVES` that ran in the low dtype.
        unsteady: two runs without autocast differ, so that only dtypes were compared.
    """

    op: str
    outcome: str
    listed: tuple[str, ...] = ()
    unsteady: bool = False


def sweep(backend: Backend, names: Sequence[str] = ()) -> Iterator[Seen]:
    """Look at every op of the database that takes float32, or at those of the given names, in the database's order.

    Raises:
        SuiteError: the database has no op of a given name that takes float32.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    missing = set(names)
    with backend.activate():
        rules = frozenset(cast_policy.declared(backend.device_type))
        for op in op_db:
            name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
            if torch.float32 in op.dtypes and (not names or name in names):
                missing.discard(name)
                yield _look(op, name, backend, rules)
    if missing:
        raise SuiteError(f"the op database of torch {torch.__version__} has no op {min(missing)!r} that takes float32")


def _look(op: Any, name: str, backend: Backend, rules: frozenset[str]) -> Seen:
    listed: set[str] = set()
    ran, unsteady, changed = False, False, ""
    for sample in _samples(op):
        plain = _run(op, sample, nullcontext)
        if isinstance(plain, Exception):
            continue
        ran = True
        got = _run(op, sample, backend.region)
        if isinstance(got, NotEmulated):
            return Seen(op=name, outcome=f"{NOT_EMULATED}: {first_line(got)}")
        again = _run(op, sample, nullcontext)
        steady = not isinstance(again, Exception) and _difference(plain, again, values=True) == ""
        difference = _difference(plain, got, values=steady and op.name not in UNSTEADY)
        if difference:
            calls = _calls(op, sample, backend)
            listed |= {call.op.removeprefix("aten::") for call in calls if _explains(call, backend, rules)}
        unsteady = unsteady or not steady
        changed = changed or difference
    outcome = (changed or AS_WITHOUT) if ran else NOTHING_RAN
    return Seen(op=name, outcome=outcome, listed=tuple(sorted(listed)), unsteady=unsteady)


def _calls(op: Any, sample: Any, backend: Backend) -> list[OpCall]:
    """The ops that run when the op is called in a region."""
    seen: list[OpCall] = []

    @contextmanager
    def observed() -> Iterator[None]:
        with observe(backend) as calls, backend.region():
            try:
                yield
            finally:
                seen.extend(calls)

    _run(op, sample, observed)
    return seen


LEAVES = frozenset({"convolution", "_prelu_kernel", "vdot"})
"""Leaf ops that a real device shows in the place of composites with a rule."""


def _explains(call: OpCall, backend: Backend, rules: frozenset[str]) -> bool:
    """Whether the op that ran has a rule, or stands for one that has."""
    name = call.op.removeprefix("aten::")
    return name in rules or (not backend.emulated and name in LEAVES and backend.low_dtype in call.input_dtypes)


def _samples(op: Any) -> list[Any]:
    try:
        made = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
    except Exception:  # noqa: BLE001 - a sampler that this machine cannot run gives no sample
        return []
    chosen = sorted({0, len(made) // 2, len(made) - 1} & set(range(len(made))))
    return [made[index] for index in chosen][:SAMPLES]


def _run(
    op: Any, sample: Any, region: Callable[[], AbstractContextManager[Any]]
) -> list[torch.Tensor | None] | Exception:
    """Outputs and gradients of one call, or its exception."""
    leaves: list[torch.Tensor] = []

    def fresh(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        copy = value.detach().clone()
        if value.requires_grad:
            leaves.append(copy.requires_grad_())
        return copy

    given, args, kwargs = tree_map(fresh, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(0)
    try:
        with region():
            outputs = [leaf for leaf in tree_leaves(op(given, *args, **kwargs)) if isinstance(leaf, torch.Tensor)]
        roots = [out for out in outputs if out.requires_grad and out.layout is torch.strided]
        gradients: Sequence[torch.Tensor | None] = ()
        if roots and leaves:
            gradients = torch.autograd.grad(roots, leaves, [torch.ones_like(r) for r in roots], allow_unused=True)
    except Exception as error:  # noqa: BLE001 - the kind is what is looked at
        return error
    return [*outputs, *gradients]


def _difference(
    plain: list[torch.Tensor | None] | Exception, got: list[torch.Tensor | None] | Exception, *, values: bool
) -> str:
    if isinstance(plain, Exception):
        return ""
    if isinstance(got, Exception):
        return f"raises {type(got).__name__}: {first_line(got)}"
    if len(plain) != len(got):
        return f"{len(got)} tensors for {len(plain)}"
    changed = ""
    for left, right in zip(plain, got, strict=True):
        if left is None or right is None:
            if left is not right:
                return "a gradient is missing"
        elif left.dtype is not right.dtype:
            return f"{dtype_name(right.dtype)} for {dtype_name(left.dtype)}"
        elif values and left.layout is torch.strided and not same_bits(left, right):
            changed = "other values"
    return changed


def in_its_own_process(backend: Backend, names: Sequence[str] = (), fault: str = "") -> list[Seen]:
    """Run the sweep in a fresh interpreter, on one thread.

    Args:
        backend: the AMP under test; must be of the table of backends.
        names: as for `sweep`.
        fault: id of a planted fault of the ops family, to be planted there.

    Raises:
        SuiteError: it could not run; the message holds the end of what it printed.
    """
    command = [sys.executable, "-m", "amp_checks.families.ops.sweep", "--backend", backend.id]
    command += ["--fault", fault] if fault else []
    command += [part for name in names for part in ("--op", name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own module
    if done.returncode:
        told = done.stderr.strip().splitlines()
        raise SuiteError(f"the sweep over torch's op database failed: {told[-1] if told else done.returncode}")
    return [Seen(**{**seen, "listed": tuple(seen["listed"])}) for seen in json.loads(done.stdout)]


def main() -> int:
    """The process's own command line."""
    parser = argparse.ArgumentParser(prog="python -m amp_checks.families.ops.sweep", description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--fault", default="")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    backend = backends.backend(args.backend)
    with ExitStack() as planted:
        if args.fault:
            mutant = next(mutant for mutant in planting.mutants("ops") if mutant.id == args.fault)
            backend = planted.enter_context(mutant.plant(backend))
        seen = [dataclasses.asdict(found) for found in sweep(backend, args.op)]
    sys.stdout.write(json.dumps(seen))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
