"""Which ops run in 16 bits, by running torch's op database: ``python -m amp_checks.families.fp32_only.sweep cpu``.

Run as a process of its own: importing that database freezes torch's global flags, which must not happen where users'
code runs. Prints one JSON document, the fields of `amp_checks.records.low_precision.Found`. Needs ``expecttest``
(``pip install 'amp-checks[opinfo]'``).
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from amp_checks import backends
from amp_checks.core import LOW_DTYPES, Backend, NotEmulated, first_line
from amp_checks.records.low_precision import Kind, Meets, Outcome, Seen, machine, to_json
from amp_checks.torch_api.numerics import dtype_name, randn, seed_of

SAMPLES = 12
"""Inputs tried per op, spread evenly over the database's own; empty ones run no kernel, and do not count."""

FAR = 0.25
"""A result further than this from float64, relative to the largest value, keeps not even two bits: it is wrong."""

UNSTEADY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
"""Ops whose values are whatever the memory held."""

LOW = (torch.float16, torch.bfloat16)
_WIDE = (torch.float32, torch.float64, torch.complex64, torch.complex128)

Found = tuple[Kind, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """One call: its tensors and gradients, or the exception of each half."""

    outputs: tuple[torch.Tensor, ...] = ()
    gradients: tuple[torch.Tensor | None, ...] = ()
    error: Exception | None = None
    backward_error: Exception | None = None
    differentiable: bool = False


class _Casts(TorchDispatchMode):
    """Notices casts from 16 bits to 32 or 64 inside an op."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].dtype in LOW:  # noqa: SLF001 - the op's own name
            self.seen = self.seen or out.dtype in _WIDE
        return out


def sweep(device_type: str, names: Sequence[str] = (), *, runs: bool) -> Iterator[dict[str, Seen]]:
    """Every op of the database that takes float32, or those of the given names: dtype -> what was seen of the op.

    A device that is not here is not run: what is declared of it is all there is, and what its rules do under emulation.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    prefix = "" if runs else "emulated-"
    lows = {dtype: backends.backend(f"{prefix}{device_type}-{dtype}") for dtype in LOW_DTYPES}
    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if torch.float32 in op.supported_dtypes(device_type) and (not names or name in names):
            samples = functools.partial(_samples, op, name, device_type if runs else "cpu")
            look = _look if runs else _look_up
            yield {dtype: look(op, name, samples, backend) for dtype, backend in lows.items()}


def _declared(op: Any, backend: Backend) -> tuple[bool, bool | None]:
    forward = backend.low_dtype in op.supported_dtypes(backend.device_type)
    backward = op.supported_backward_dtypes(backend.device_type) if op.supports_autograd else ()
    return forward, forward and backend.low_dtype in backward if torch.float32 in backward else None


def _look(op: Any, name: str, samples: Callable[[], list[Any]], backend: Backend) -> Seen:
    """Run an op in one low dtype, against itself in float64 on the same rounded inputs."""
    low = backend.low_dtype
    forwards: list[Found] = []
    backwards: list[Found] = []
    met: list[tuple[bool, Meets]] = []
    for sample in samples():
        wide = _run(op, _cast(sample, low, torch.float32))
        if wide.error is not None:
            continue
        exact = _run(op, _cast(sample, low, torch.float64))
        casts = _Casts()
        got = _run(op, _cast(sample, low, low), casts)
        steady = op.name not in UNSTEADY and not _far(wide.outputs, exact.outputs, torch.float32)
        forwards.append(_forward(got, wide, exact, low, steady=steady, widened=casts.seen))
        if got.error is None and wide.differentiable and wide.backward_error is None:
            steady = steady and not _far(wide.gradients, exact.gradients, torch.float32)
            backwards.append(_backward(got, exact, low, steady=steady))
        met.append((got.error is not None, _meets(op, _cast(sample, low, low), backend, raises=got.error is not None)))
    forward, backward = _declared(op, backend)
    # Where some samples raise outside a region, they are what one wants to know of.
    raising = any(raises for raises, _ in met)
    return Seen(
        op=name,
        forward=_worst(forwards),
        backward=_worst(backwards),
        declared_forward=forward,
        declared_backward=backward,
        meets=_worst_met({kind for raises, kind in met if raises or not raising}),
    )


def _look_up(op: Any, name: str, samples: Callable[[], list[Any]], backend: Backend) -> Seen:
    """What is declared of an op on a device that is not here; where that is a lack, what the device's rules do."""
    forward, backward = _declared(op, backend)
    found: set[Meets] = set()
    if not forward or backward is False:
        with backend.activate():
            for sample in samples():
                found.add(_meets(op, _cast(sample, backend.low_dtype, backend.low_dtype), backend))
    if not forward and Meets.PASSES in found:
        found.add(Meets.ERROR)  # what the CPU's kernel runs, the device's does not, by declaration
    return Seen(
        op=name,
        forward=None,
        backward=None,
        declared_forward=forward,
        declared_backward=backward,
        meets=_worst_met(found),
    )


def _worst_met(found: set[Meets]) -> Meets:
    return next((kind for kind in (Meets.ERROR, Meets.PASSES, Meets.RULE) if kind in found), Meets.UNSEEN)


def _worst(found: list[Found]) -> Outcome | None:
    """One outcome of several samples; None where none was run."""
    for kind in Kind:
        whys = [why for each, why in found if each is kind]
        if whys:
            return Outcome(kind=kind, count=len(whys), of=len(found), why=whys[0])
    return None


def _forward(got: _Ran, wide: _Ran, exact: _Ran, low: torch.dtype, *, steady: bool, widened: bool) -> Found:
    if got.error is not None:
        return Kind.RAISES, _told(got.error)
    if steady and (wrong := _far(got.outputs, exact.outputs, low)):
        return Kind.WRONG, f"output {wrong}"
    for index, (mine, theirs) in enumerate(zip(got.outputs, wide.outputs, strict=False)):
        if theirs.dtype in _WIDE and mine.dtype is theirs.dtype:
            return Kind.FLOAT32, f"output {index} is {dtype_name(mine.dtype)}"
    return (Kind.FLOAT32, "casts to float32 inside") if widened else (Kind.SUPPORTS, "")


def _backward(got: _Ran, exact: _Ran, low: torch.dtype, *, steady: bool) -> Found:
    if got.backward_error is not None:
        return Kind.RAISES, _told(got.backward_error)
    if not got.differentiable:
        return Kind.RAISES, "the result has no gradient"
    if steady and (wrong := _far(got.gradients, exact.gradients, low)):
        return Kind.WRONG, f"gradient {wrong}"
    return Kind.SUPPORTS, ""


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"[:120]


def _far(got: Sequence[torch.Tensor | None], exact: Sequence[torch.Tensor | None], dtype: torch.dtype) -> str:
    """How results are far from float64's; empty where they are not, or where they cannot be compared."""
    for index, (mine, theirs) in enumerate(zip(got, exact, strict=False)):
        if mine is None or theirs is None or mine.shape != theirs.shape or mine.numel() == 0:
            continue
        if not (theirs.is_floating_point() or theirs.is_complex()):
            continue
        if mine.layout is not torch.strided or theirs.layout is not torch.strided:
            continue
        actual, expected = (_plain(tensor) for tensor in (mine, theirs))
        # Beyond the dtype's range infinity is right; below its normal numbers there are few bits or none.
        inside = expected.isfinite() & (expected.abs() <= torch.finfo(dtype).max)
        lost = inside & ~actual.isfinite()
        if lost.any():
            return f"{index}: {int(lost.sum())} of {lost.numel()} values not finite where float64 is"
        if inside.any():
            scale = max(expected[inside].abs().max().item(), torch.finfo(dtype).tiny)
            error = (actual[inside] - expected[inside]).abs().max().item() / scale
            if not error < FAR:
                return f"{index}: off by {error:.2g} of the largest value"
    return ""


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return real.to(device="cpu", dtype=torch.float64)


def _meets(op: Any, sample: tuple[Any, ...], backend: Backend, *, raises: bool = False) -> Meets:
    """What a region does with the op when its inputs are in the low dtype already, which outside it ``raises``."""
    with torch.no_grad():
        got = _run(op, sample, backend.region())
    if isinstance(got.error, NotEmulated):
        return Meets.UNSEEN
    if got.error is not None:
        return Meets.ERROR
    floating = [out for out in got.outputs if out.is_floating_point() or out.is_complex()]
    if not floating:
        return Meets.RULE if raises else Meets.PASSES
    return Meets.RULE if any(out.dtype in _WIDE for out in floating) else Meets.PASSES


def _samples(op: Any, name: str, device: str) -> list[Any]:
    """Seeded samples in float32 that hold something; none where the sampler cannot run here."""
    seed = seed_of(name)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the database's samplers draw from it
    try:
        made = list(op.sample_inputs(device, torch.float32, requires_grad=op.supports_autograd))
    except Exception:  # noqa: BLE001 - a sampler that this machine cannot run gives no sample
        return []
    made = [sample for sample in made if all(tensor.numel() for tensor in _tensors(_parts(sample)))]
    if len(made) <= SAMPLES:
        return made
    return [made[round(index * (len(made) - 1) / (SAMPLES - 1))] for index in range(SAMPLES)]


def _parts(sample: Any) -> tuple[Any, ...]:
    return sample.input, sample.args, sample.kwargs


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _cast(sample: Any, low: torch.dtype, dtype: torch.dtype) -> tuple[Any, ...]:
    """Input, arguments and keywords, with float32 rounded to the low dtype and then in ``dtype``."""

    def convert(value: Any) -> Any:
        if value is torch.float32:
            return dtype
        if not isinstance(value, torch.Tensor):
            return value
        copy = value.detach().clone()
        if value.dtype is torch.float32:
            copy = copy.to(low).to(dtype)
        return copy.requires_grad_(value.requires_grad)

    converted: tuple[Any, ...] = tree_map(convert, _parts(sample))
    return converted


def _run(op: Any, sample: tuple[Any, ...], around: AbstractContextManager[Any] | None = None) -> _Ran:
    """One call with something around it, and the gradients of its outputs' weighted sum."""
    given, args, kwargs = sample
    leaves = [leaf for leaf in _tensors(sample) if leaf.requires_grad]
    torch.manual_seed(0)
    try:
        with around or nullcontext():
            outputs = tuple(_tensors(op(given, *args, **kwargs)))
    except Exception as error:  # noqa: BLE001 - the kind is what is looked at
        return _Ran(error=error)
    ran = _Ran(outputs=outputs)
    if not leaves or not any(out.requires_grad for out in outputs):
        return ran
    try:
        roots = [out if out.layout is torch.strided else out.to_dense() for out in outputs if out.requires_grad]
        weights = [_weights(root, seed=f"weights {index}") for index, root in enumerate(roots)]
        gradients = torch.autograd.grad(roots, leaves, weights, allow_unused=True)
    except Exception as error:  # noqa: BLE001 - the kind is what is looked at
        return dataclasses.replace(ran, backward_error=error, differentiable=True)
    return dataclasses.replace(ran, gradients=tuple(gradients), differentiable=True)


def _weights(root: torch.Tensor, *, seed: str) -> torch.Tensor:
    """Numbers that a low dtype holds exactly; of ones, many a gradient is zero."""
    weights = (randn(*root.shape, seed=seed) * 8).round() / 8
    return weights.to(device=root.device, dtype=root.dtype)


def main() -> int:
    """The process's own command line."""
    parser = argparse.ArgumentParser(prog="python -m amp_checks.families.fp32_only.sweep", description=__doc__)
    parser.add_argument("device", choices=backends.REAL)
    parser.add_argument("op", nargs="*")
    parser.add_argument("--declared", action="store_true", help="run nothing, even where the device is here")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    runs = not args.declared and backends.why_unavailable(f"{args.device}-float16") is None
    seen = list(sweep(args.device, args.op, runs=runs))
    document = {
        "torch": torch.__version__.partition("+")[0],
        "machine": machine(),
        "ran": runs,
        "looked_at": len(seen),
        "ops": {
            dtype: {found.op: to_json(found) for each in seen if (found := each[dtype]).notable or args.op}
            for dtype in LOW_DTYPES
        },
    }
    sys.stdout.write(json.dumps(document))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
