"""Runs torch's own op database through the emulation, in a process of its own: importing it freezes torch's flags.

    python tests/emulation/opinfo.py fidelity --dtype bfloat16     emulated "cpu" against real CPU autocast, bitwise
    python tests/emulation/opinfo.py sweep --device cuda           every op, forward and backward, on emulated CUDA

``--every N --offset K`` takes one op in N. The last line is a summary as JSON. The exit status is 1 when an op fails
that `EXPECTED` does not name, or one that it names does not fail. Pytest does not collect it: `test_gate.py` runs it.
"""

# ruff: noqa: T201 - a script
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from packaging.version import Version
from torch.utils._pytree import tree_map

from amp_checks.backends.observe import observe
from amp_checks.core import NotEmulated
from amp_checks.emulation import DEVICE_TYPES, emulate
from amp_checks.families.ops.database import NEEDS_CUDA
from amp_checks.suite import opinfo
from amp_checks.suite.opinfo import Op, tensors_of

_OWN = "AMP's own: "
_PINV_KERNEL = (
    _OWN + "pinv's kernel calls matmul: its result is low, its backward mixes dtypes; real CPU autocast raises too"
)
_NO_LOW = _OWN + "the op has no low-precision kernel on any device, and is given a product"
_ALWAYS = "2.0"

EXPECTED: dict[str, dict[str, tuple[str, str]]] = {
    "fidelity": {
        "linalg.polar": ("2.14", "the CPU's own kernel calls matmul; the emulation does not enter CPU kernels"),
    },
    "sweep": {
        "nn.functional.binary_cross_entropy": (_ALWAYS, _OWN + "banned"),
        "svd_lowrank": (_ALWAYS, _NO_LOW),
        "pca_lowrank": (_ALWAYS, _NO_LOW),
        "linalg.pinv.singular": (_ALWAYS, _NO_LOW),
        "linalg.pinv": (_ALWAYS, _PINV_KERNEL),
        "linalg.pinv.hermitian": (_ALWAYS, _PINV_KERNEL),
        "pinverse": (_ALWAYS, _PINV_KERNEL),
    },
    "sweep on maia": {
        "to_sparse": (_ALWAYS, "torch has no sparse tensors on maia"),
        "sparse.mm.reduce": (_ALWAYS, "torch has no sparse tensors on maia"),
    },
}
"""Ops that fail, since which torch version, and why."""

NOT_BANNED = ("mps",)
"""Device types on which binary_cross_entropy is not banned."""

IRREPRODUCIBLE_OPS = ("linalg.lstsq", "linalg.lstsq.grad_oriented")
"""Ops whose CPU kernel gives different bits from one call to the next (LAPACK's gelsy reads a workspace)."""


def expected(options: argparse.Namespace) -> set[str]:
    """Names of the ops that fail on this torch."""
    rows = dict(EXPECTED[options.what])
    if options.what == "sweep":
        rows.update(EXPECTED.get(f"sweep on {options.device}", {}))
        if options.device in NOT_BANNED:
            del rows["nn.functional.binary_cross_entropy"]
    return {name for name, (since, _) in rows.items() if Version(torch.__version__) >= Version(since)}


SAMPLES = 6
REPEATS = 12
IRREPRODUCIBLE = "irreproducible"
AS_REAL = "as real CPU autocast"
NOTHING_RAN = "nothing ran: each sample raises without autocast too"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one call gave: its tensors and gradients, or its exception."""

    outputs: tuple[torch.Tensor, ...] = ()
    gradients: tuple[torch.Tensor | None, ...] = ()
    error: Exception | None = None


def run(call: Callable[[], Any], leaves: list[torch.Tensor], region: Callable[[], Any], *, inside: bool) -> Ran:
    """Call the op in the region; differentiate its outputs, weighted by ones, after it or inside it."""
    torch.manual_seed(0)
    try:
        with region() as autocast:
            with autocast:
                outputs = tensors_of(call())
                gradients = _gradients(outputs, leaves) if inside else ()
            if not inside:
                gradients = _gradients(outputs, leaves)
    except Exception as error:  # noqa: BLE001 - the kind is compared
        return Ran(error=error)
    return Ran(outputs=tuple(tensor.detach() for tensor in outputs), gradients=gradients)


def _gradients(outputs: list[torch.Tensor], leaves: list[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    roots = [
        out for out in outputs if out.requires_grad and out.dtype.is_floating_point and out.layout is torch.strided
    ]
    if not roots or not leaves:
        return ()
    return torch.autograd.grad(roots, leaves, [torch.ones_like(root) for root in roots], allow_unused=True)


def difference(real: torch.Tensor | None, emulated: torch.Tensor | None) -> str | None:
    """How two results differ, to the bit and with their layout; None where they do not."""
    if real is None or emulated is None:
        return None if real is emulated else f"{_kind(real)} but {_kind(emulated)}"
    if (real.dtype, real.shape, real.layout) != (emulated.dtype, emulated.shape, emulated.layout):
        return f"{_kind(real)} but {_kind(emulated)}"
    if real.layout is not torch.strided:
        return difference(real.to_dense(), emulated.to_dense())
    if real.numel() and real.stride() != emulated.stride():
        return f"strides {real.stride()} but {emulated.stride()}"
    if torch.equal(_bits(real), _bits(emulated)):
        return None
    return f"{_kind(real)} bits, largest difference {(real - emulated).abs().max().item():.3g}"


def _kind(tensor: torch.Tensor | None) -> str:
    return "none" if tensor is None else f"{tensor.dtype}{tuple(tensor.shape)}".removeprefix("torch.")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[plain.element_size()]
    return plain.reshape(-1).view(size)


def samples(op: Op, options: argparse.Namespace) -> Iterator[tuple[Callable[[], Any], list[torch.Tensor]]]:
    """Calls of an op, each with its leaves."""
    made = op.info.sample_inputs("cpu", torch.float32, requires_grad=op.info.supports_autograd)
    for index, sample in enumerate(made):
        if index == SAMPLES:
            return
        given = _in_dtypes(opinfo.parts_of(sample), options)
        leaves = [leaf for leaf in tensors_of(given) if leaf.requires_grad]
        yield functools.partial(op.info, given[0], *given[1], **given[2]), leaves


def _in_dtypes(value: Any, options: argparse.Namespace) -> Any:
    """The value with all, or every second, of its float32 tensors in the low dtype."""
    if options.inputs == "float32":
        return value
    count = 0

    def convert(leaf: Any) -> Any:
        nonlocal count
        if not isinstance(leaf, torch.Tensor) or leaf.dtype is not torch.float32:
            return leaf
        count += 1
        if options.inputs == "mixed" and count % 2:
            return leaf
        return leaf.detach().to(getattr(torch, options.dtype)).requires_grad_(leaf.requires_grad)

    return tree_map(convert, value)


def fidelity(op: Op, options: argparse.Namespace) -> str | None:
    """How the emulated CPU differs from real CPU autocast on this op; None where it does not."""
    dtype = getattr(torch, options.dtype)

    @contextlib.contextmanager
    def emulated() -> Iterator[Any]:
        with emulate("cpu", numerics=options.numerics):
            watched = observe() if options.observed else contextlib.nullcontext()
            with watched:
                yield torch.autocast("cpu", dtype=dtype, enabled=not options.disabled)

    def real() -> Any:
        return contextlib.nullcontext(torch.autocast("cpu", dtype=dtype, enabled=not options.disabled))

    for call, leaves in samples(op, options):
        expected = run(call, leaves, real, inside=options.inside)
        differs = _compare(expected, run(call, leaves, emulated, inside=options.inside))
        if differs is None:
            continue
        again = (run(call, leaves, real, inside=options.inside) for _ in range(REPEATS))
        if any(_compare(expected, repeated) is not None for repeated in again):
            return f"{IRREPRODUCIBLE}: real CPU autocast differs from itself"
        return differs
    return None


def _compare(expected: Ran, actual: Ran) -> str | None:
    if expected.error is not None or actual.error is not None:
        if type(expected.error) is type(actual.error):
            return None
        return f"real: {expected.error!r:.150}, emulated: {actual.error!r:.150}"
    if len(expected.outputs) != len(actual.outputs):
        return f"{len(expected.outputs)} outputs but {len(actual.outputs)}"
    for what, ours, theirs in (
        ("output", expected.outputs, actual.outputs),
        ("gradient", expected.gradients, actual.gradients),
    ):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            differs = difference(one, other)
            if differs is not None:
                return f"{what}[{index}]: {differs}"
    return None


def sweep(op: Op, options: argparse.Namespace) -> str | None:
    """What fails when the op runs forward and backward in a region of the emulated device; None where nothing does."""
    dtype = getattr(torch, options.dtype)

    @contextlib.contextmanager
    def emulated() -> Iterator[Any]:
        with emulate(options.device, numerics=options.numerics):
            watched = observe() if options.observed else contextlib.nullcontext()
            with watched:
                yield torch.autocast(options.device, dtype=dtype)

    def plain() -> Any:
        return contextlib.nullcontext(contextlib.nullcontext())

    ran = False
    for call, leaves in samples(op, options):
        expected = run(call, leaves, plain, inside=False)
        if expected.error is not None:
            continue
        ran = True
        actual = run(call, leaves, emulated, inside=options.inside)
        if actual.error is not None:
            return f"{_kind_of_failure(actual.error, call, leaves, options)}{actual.error!r:.200}"
        failing = _compare_loosely(expected, actual, uninitialised=not op.initialised)
        if failing is not None:
            return failing
    return None if ran else NOTHING_RAN


def _kind_of_failure(
    error: Exception, call: Callable[[], Any], leaves: list[torch.Tensor], options: argparse.Namespace
) -> str:
    """Whose failure it is: the emulation's, or one that real CPU autocast shows on the same call, word for word."""
    if isinstance(error, NotEmulated):
        return "not emulated: "
    region = torch.autocast("cpu", dtype=getattr(torch, options.dtype))
    real = run(call, leaves, lambda: contextlib.nullcontext(region), inside=options.inside)
    same = type(real.error) is type(error) and str(real.error).splitlines()[0] == str(error).splitlines()[0]
    return f"{AS_REAL}: " if same else ""


def _compare_loosely(expected: Ran, actual: Ran, *, uninitialised: bool) -> str | None:
    for index, (one, other) in enumerate(zip(expected.outputs, actual.outputs, strict=True)):
        if type(other) is not type(one):
            return f"output[{index}] is a {type(other).__name__}"
        if one.layout is torch.strided and other.layout is torch.strided and one.stride() != other.stride():
            return f"output[{index}]: strides {one.stride()} but {other.stride()}"
        if one.shape != other.shape or one.layout != other.layout:
            return f"output[{index}]: {_kind(one)} but {_kind(other)}"
        if uninitialised or one.layout is not torch.strided or not one.dtype.is_floating_point:
            continue
        if torch.isfinite(one).all() and not torch.isfinite(other).all():
            return f"output[{index}]: not finite"
        if other.dtype is torch.float32 and not torch.allclose(one, other, rtol=2e-2, atol=2e-2, equal_nan=True):
            return f"output[{index}]: far from float32: {(one - other).abs().max().item():.3g}"
    for index, (mine, theirs) in enumerate(zip(expected.gradients, actual.gradients, strict=True)):
        if (mine is None) != (theirs is None) or (
            mine is not None and theirs is not None and mine.dtype is not theirs.dtype
        ):
            return f"gradient[{index}]: {_kind(mine)} but {_kind(theirs)}"
    return None


def main() -> int:
    """Run what was asked for; report each op that differs, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fidelity", "sweep"))
    parser.add_argument("--device", choices=DEVICE_TYPES, default="cuda")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16")
    parser.add_argument("--numerics", choices=("native", "float32"), default="native")
    parser.add_argument(
        "--inputs", choices=("float32", "low", "mixed"), default="float32", help="dtype of the floating inputs"
    )
    parser.add_argument("--inside", action="store_true", help="run backward inside the region")
    parser.add_argument("--disabled", action="store_true", help="with autocast off: fidelity to plain torch")
    parser.add_argument("--observed", action="store_true", help="with an observer on, so that no function is skipped")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="names of ops")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    check = fidelity if options.what == "fidelity" else sweep
    chosen = list(opinfo.sweep(lambda op: op))
    if options.what == "fidelity":
        chosen = [op for op in chosen if op.initialised]
    chosen = chosen[options.offset :: options.every]
    if options.only:
        chosen = [op for op in chosen if op.name in options.only]
    began = time.perf_counter()
    failed: dict[str, str] = {}
    nothing_ran: list[str] = []
    for op in chosen:
        try:
            why = check(op, options)
        except Exception as error:  # noqa: BLE001 - reported by name
            why = f"the harness itself: {error!r:.200}"
        if why == NOTHING_RAN and op.name in NEEDS_CUDA:
            nothing_ran.append(op.name)
        elif why is not None:
            failed[op.name] = why
            print(f"{op.name}: {why}", flush=True)
    names = {op.name for op in chosen}
    excused = {name for name in failed if name in IRREPRODUCIBLE_OPS and failed[name].startswith(IRREPRODUCIBLE)}
    foreseen = expected(options) & names
    summary = {
        "what": options.what,
        "torch": torch.__version__,
        "device": "cpu" if options.what == "fidelity" else options.device,
        "dtype": options.dtype,
        "numerics": options.numerics,
        "inputs": options.inputs,
        "ops": len(chosen),
        "right": len(chosen) - len(failed) - len(nothing_ran),
        "need a CUDA device to run at all": nothing_ran,
        "as real CPU autocast": sum(why.startswith(AS_REAL) for why in failed.values()),
        "failed": sorted(failed),
        "unforeseen": sorted(set(failed) - excused - foreseen),
        "foreseen but right": sorted(foreseen - set(failed)),
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(summary))
    plain = options.inputs == "float32" and not options.disabled and options.numerics == "native"
    return int(bool(summary["unforeseen"]) or (plain and bool(summary["foreseen but right"])))


if __name__ == "__main__":
    sys.exit(main())
