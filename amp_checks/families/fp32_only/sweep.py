"""Which ops run in 16 bits, by running torch's op database: ``python -m amp_checks.families.fp32_only.sweep cpu``.

Run as a process of its own (`amp_checks.suite.opinfo`). Prints the fields of `amp_checks.records.low_precision.Found`.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_checks import backends
from amp_checks.core import LOW_DTYPES, NotEmulated, first_line
from amp_checks.records import low_precision
from amp_checks.records.low_precision import Kind, Meets, Outcome, Seen
from amp_checks.suite import opinfo
from amp_checks.suite.opinfo import Op, Ran
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import LOW, dtype_name

SAMPLES = 12
"""Inputs tried per op, spread evenly over the database's own; empty ones run no kernel, and do not count."""

FAR = 0.25
"""A result further than this from float64, relative to the largest value, keeps not even two bits: it is wrong."""

_WIDE = (torch.float32, torch.float64, torch.complex64, torch.complex128)

Found = tuple[Kind, str]


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
    prefix = "" if runs else "emulated-"
    lows = {dtype: backends.backend(f"{prefix}{device_type}-{dtype}") for dtype in LOW_DTYPES}
    look = functools.partial(_look, device=device_type) if runs else _look_up
    return opinfo.sweep(
        lambda op: {dtype: look(op, backend) for dtype, backend in lows.items()}, names, device_type=device_type
    )


def _declared(op: Op, backend: Backend) -> tuple[bool, bool | None]:
    forward = backend.low_dtype in op.info.supported_dtypes(backend.device_type)
    backward = op.info.supported_backward_dtypes(backend.device_type) if op.info.supports_autograd else ()
    return forward, forward and backend.low_dtype in backward if torch.float32 in backward else None


def _look(op: Op, backend: Backend, *, device: str) -> Seen:
    """Run an op in one low dtype, against itself in float64 on the same rounded inputs."""
    low = backend.low_dtype
    forwards: list[Found] = []
    backwards: list[Found] = []
    met: list[tuple[bool, Meets]] = []
    for sample in op.samples(SAMPLES, device=device):
        wide = op.run(_cast(sample, low, torch.float32))
        if wide.error is not None:
            continue
        exact = op.run(_cast(sample, low, torch.float64))
        casts = _Casts()
        got = op.run(_cast(sample, low, low), casts)
        comparable = op.initialised and not _far(wide.outputs, exact.outputs, torch.float32)
        forwards.append(_forward(got, wide, exact, low, comparable=comparable, widened=casts.seen))
        if got.error is None and wide.differentiable and wide.backward_error is None:
            comparable = comparable and not _far(wide.gradients, exact.gradients, torch.float32)
            backwards.append(_backward(got, exact, low, comparable=comparable))
        met.append((got.error is not None, _meets(op, _cast(sample, low, low), backend, raises=got.error is not None)))
    forward, backward = _declared(op, backend)
    # Where some samples raise outside a region, they are what one wants to know of.
    raising = any(raises for raises, _ in met)
    return Seen(
        op=op.name,
        forward=_worst(forwards),
        backward=_worst(backwards),
        declared_forward=forward,
        declared_backward=backward,
        meets=_worst_met({kind for raises, kind in met if raises or not raising}),
    )


def _look_up(op: Op, backend: Backend) -> Seen:
    """What is declared of an op on a device that is not here; where that is a lack, what the device's rules do."""
    forward, backward = _declared(op, backend)
    found: set[Meets] = set()
    if not forward or backward is False:
        with backend.activate():
            for sample in op.samples(SAMPLES):
                found.add(_meets(op, _cast(sample, backend.low_dtype, backend.low_dtype), backend))
    if not forward and Meets.PASSES in found:
        found.add(Meets.ERROR)  # what the CPU's kernel runs, the device's does not, by declaration
    return Seen(
        op=op.name,
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


def _forward(got: Ran, wide: Ran, exact: Ran, low: torch.dtype, *, comparable: bool, widened: bool) -> Found:
    if got.error is not None:
        return Kind.RAISES, _in_words(got.error)
    if comparable and (wrong := _far(got.outputs, exact.outputs, low)):
        return Kind.WRONG, f"output {wrong}"
    for index, (mine, theirs) in enumerate(zip(got.outputs, wide.outputs, strict=False)):
        if theirs.dtype in _WIDE and mine.dtype is theirs.dtype:
            return Kind.FLOAT32, f"output {index} is {dtype_name(mine.dtype)}"
    return (Kind.FLOAT32, "casts to float32 inside") if widened else (Kind.SUPPORTS, "")


def _backward(got: Ran, exact: Ran, low: torch.dtype, *, comparable: bool) -> Found:
    if got.backward_error is not None:
        return Kind.RAISES, _in_words(got.backward_error)
    if not got.differentiable:
        return Kind.RAISES, "the result has no gradient"
    if comparable and (wrong := _far(got.gradients, exact.gradients, low)):
        return Kind.WRONG, f"gradient {wrong}"
    return Kind.SUPPORTS, ""


def _in_words(error: Exception) -> str:
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


def _meets(op: Op, sample: tuple[Any, ...], backend: Backend, *, raises: bool = False) -> Meets:
    """What a region does with the op when its inputs are in the low dtype already, which outside it ``raises``."""
    with torch.no_grad():
        got = op.run(sample, backend.region())
    if isinstance(got.error, NotEmulated):
        return Meets.UNSEEN
    if got.error is not None:
        return Meets.ERROR
    floating = [out for out in got.outputs if out.is_floating_point() or out.is_complex()]
    if not floating:
        return Meets.RULE if raises else Meets.PASSES
    return Meets.RULE if any(out.dtype in _WIDE for out in floating) else Meets.PASSES


def _cast(sample: Any, low: torch.dtype, dtype: torch.dtype) -> tuple[Any, ...]:
    """Input, arguments and keywords, with float32 rounded to the low dtype and then in ``dtype``."""

    def convert(value: Any) -> Any:
        if value is torch.float32:
            return dtype
        return value.to(low).to(dtype) if getattr(value, "dtype", None) is torch.float32 else value

    return opinfo.copied(sample, convert)


def run_here(device_type: str, names: Sequence[str] = (), *, declared: bool = False) -> low_precision.Found:
    """Run every op of torch's database, or those of the given names, in a fresh interpreter, on one thread.

    ``declared``: look at the declarations alone, as of a device that is not here.

    Raises:
        SuiteError: as of `opinfo.run_module`.
    """
    arguments = [device_type, *names] + ["--declared"] * declared
    plain = opinfo.run_module("amp_checks.families.fp32_only.sweep", *arguments)
    return low_precision.Found(**{**plain, "ops": low_precision.ops_from_json(plain["ops"])})


def main() -> int:
    """The process's own command line."""
    parser = argparse.ArgumentParser(prog="python -m amp_checks.families.fp32_only.sweep", description=__doc__)
    parser.add_argument("device", choices=backends.REAL)
    parser.add_argument("op", nargs="*")
    parser.add_argument("--declared", action="store_true", help="run nothing, even where the device is here")
    args = parser.parse_args()

    def document() -> dict[str, Any]:
        runs = not args.declared and backends.why_unavailable(f"{args.device}-float16") is None
        seen = list(sweep(args.device, args.op, runs=runs))
        notable = {
            dtype: {
                found.op: low_precision.to_json(found) for each in seen if (found := each[dtype]).notable or args.op
            }
            for dtype in LOW_DTYPES
        }
        return {
            "torch": torch.__version__.partition("+")[0],
            "machine": low_precision.machine(),
            "ran": runs,
            "looked_at": len(seen),
            "ops": notable,
        }

    return opinfo.answer(document)


if __name__ == "__main__":
    raise SystemExit(main())
