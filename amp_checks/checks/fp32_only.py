"""Ops without 16-bit support: the 16-bit call fails, and the remedy works: ``float()`` inside a disabled
region.

The remedy, as a user writes it::

    with torch.autocast("cuda"):
        hidden = layer(x)                                   # float16
        with torch.autocast("cuda", enabled=False):
            inverse = torch.linalg.inv(hidden.float())      # float32
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from amp_checks import data
from amp_checks.cases.fp32_only import Fp32OnlyCase, Input
from amp_checks.core import Backend, Check, Finding, Raised, SuiteError, attempt, bounded, exact
from amp_checks.numerics import Threshold, dtype_name, error_ratio, randn, same_bits

ACCURACY = Threshold(
    value=100.0,
    unit="eps(float32) * max|float64 reference|",
    healthy="up to 21 over all rows and default backends (gradient of svdvals), torch 2.13.0 on a CPU",
    weakest_mutant="a float32 kernel that keeps as many bits as TF32: 2795 on linalg.inv",
    measured="amp-checks run --family fp32-only; the mutant fp32-kernel-keeps-eleven-bits",
)


def checks_for(case: Fp32OnlyCase) -> Iterator[Check]:
    yield check_low_precision_call_raises
    yield check_forced_fp32_output
    yield check_forced_fp32_accuracy
    if case.differentiable:
        yield check_forced_fp32_gradient
    yield check_region_comes_back


def check_low_precision_call_raises(case: Fp32OnlyCase, backend: Backend) -> Iterator[Finding]:
    """Called in the low dtype, outside autocast, the op raises.

    The kernels of an emulated device are not here: its row is looked up among the recorded declarations
    instead, and the finding says that nothing was run.
    """
    if backend.emulated:
        yield exact(
            f"declared, not run: {backend.dtype} support of {case.declared} on {backend.device_type}",
            actual=declaration(case.declared, backend.device_type, backend.dtype),
            expected="unsupported",
            why="torch's own declarations (fixtures/low_precision_support.json): an emulation cannot tell",
        )
        return
    low = [leaf.to(backend.low_dtype) for leaf in _leaves(case, backend)]
    try:
        out = attempt(f"{case.id} in {backend.dtype}", case.op, *low)
    except Raised as raised:
        actual = "raises" if isinstance(raised.error, RuntimeError) else type(raised.error).__name__
    else:
        actual = "gives " + ", ".join(dtype_name(tensor.dtype) for tensor in _tensors(out))
    yield exact(
        f"{case.id} called with {backend.dtype} outside autocast",
        actual=actual,
        expected="raises",
        why=f"its row says that {backend.device_type} does not support it: if it runs now, narrow the row",
    )


def check_forced_fp32_output(case: Fp32OnlyCase, backend: Backend) -> Iterator[Finding]:
    """Forced to FP32, the op gives FP32, finite, bitwise what it gives for that rounded input without AMP."""
    leaves = _leaves(case, backend)
    run = _remedied(case, backend, leaves)
    for number, tensor in enumerate(run.upstream):
        yield exact(
            f"upstream[{number}].dtype",
            actual=dtype_name(tensor.dtype),
            expected=backend.dtype,
            why="mm has the policy lower_precision_fp: what reaches the op is in the low dtype",
        )
    # Some ops take another algorithm where gradients are wanted (svdvals computes the vectors too).
    reference, _ = _differentiate(case, _rounded(leaves, backend))
    for number, (out, expected) in enumerate(zip(run.outputs, reference, strict=True)):
        single = torch.complex64 if expected.is_complex() else torch.float32
        yield exact(
            f"output[{number}].dtype",
            actual=dtype_name(out.dtype),
            expected=dtype_name(single),
            why="a disabled region casts nothing, and the input was float32",
        )
        yield exact(
            f"output[{number}] is finite",
            actual=bool(torch.isfinite(out).all()),
            expected=True,
            why="the input is well inside the range of float32",
        )
        yield exact(
            f"output[{number}] bitwise",
            actual="equal" if same_bits(out, expected) else "different",
            expected="equal",
            why="the same op on the same rounded input, outside autocast",
        )


def check_forced_fp32_accuracy(case: Fp32OnlyCase, backend: Backend) -> Iterator[Finding]:
    """Forced to FP32, output and input gradients are within a bound of float64's on the rounded input."""
    leaves = _leaves(case, backend)
    run = _remedied(case, backend, leaves)
    exact_inputs = [tensor.double() for tensor in _rounded(leaves, backend)]
    exact_outputs, exact_gradients = _differentiate(case, exact_inputs)
    for number, (out, expected) in enumerate(zip(run.outputs, exact_outputs, strict=True)):
        yield _accurate(f"output[{number}] against float64", out, expected)
    if case.differentiable:
        _, gradients = _differentiate(case, _rounded(leaves, backend))
        for number, (gradient, expected) in enumerate(zip(gradients, exact_gradients, strict=True)):
            yield _accurate(f"gradient of input[{number}] against float64", gradient, expected)


def _accurate(subject: str, actual: torch.Tensor, expected: torch.Tensor) -> Finding:
    return bounded(
        subject,
        ratio=error_ratio(_real(actual), _real(expected), run_dtype=torch.float32),
        threshold=ACCURACY.value,
        why=f"error in units of {ACCURACY.unit}",
    )


def check_forced_fp32_gradient(case: Fp32OnlyCase, backend: Backend) -> Iterator[Finding]:
    """Through ``float()`` and the upstream op, the gradient reaches the FP32 leaves, in FP32.

    Its value is that of the op's own FP32 gradient, rounded once to the low dtype: so ``float()`` hands it
    back.
    """
    leaves = _leaves(case, backend)
    run = _remedied(case, backend, leaves)
    if any(out.requires_grad for out in run.outputs):
        attempt("backward", _backward, run.outputs)
    _, expected = _differentiate(case, _rounded(leaves, backend))
    for number, (leaf, gradient) in enumerate(zip(leaves, expected, strict=True)):
        got = leaf.grad
        yield exact(
            f"leaf[{number}].grad.dtype",
            actual="no gradient" if got is None else dtype_name(got.dtype),
            expected="float32",
            why="a gradient has the dtype of its leaf",
        )
        if got is not None:
            handed_back = gradient.to(backend.low_dtype).to(torch.float32)
            yield exact(
                f"leaf[{number}].grad value",
                actual="equal" if torch.equal(got, handed_back) else "different",
                expected="equal",
                why="the op's FP32 gradient, rounded once to the low dtype; mm with the identity is exact",
            )


def check_region_comes_back(case: Fp32OnlyCase, backend: Backend) -> Iterator[Finding]:
    """Autocast is off inside the disabled region, on again after it, and off after the outer one."""
    run = _remedied(case, backend, _leaves(case, backend))
    for where, actual, expected in (
        ("inside the disabled region", run.inside, "float32"),
        ("after the disabled region", run.after, backend.dtype),
        ("after the outer region", run.outside, "float32"),
    ):
        yield exact(
            f"mm of float32 {where}",
            actual=actual,
            expected=expected,
            why="mm is lowered in an enabled region; elsewhere it keeps the dtype of its input",
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What the remedy gave: tensors before and after the op, and the dtypes that mm gave around it."""

    upstream: list[torch.Tensor]
    outputs: list[torch.Tensor]
    inside: str
    after: str
    outside: str


def _remedied(case: Fp32OnlyCase, backend: Backend, leaves: Sequence[torch.Tensor]) -> _Run:
    """The remedy as the module's text shows it, with mm on float32 around it as a probe."""
    probe = torch.ones(2, 2, device=backend.device_type)

    def observe() -> str:
        return dtype_name(torch.mm(probe, probe).dtype)

    def remedy() -> _Run:
        with backend.region():
            upstream = [_through_mm(leaf) for leaf in leaves]
            with backend.region(enabled=False):
                outputs = _tensors(case.op(*(tensor.float() for tensor in upstream)))
                inside = observe()
            after = observe()
        return _Run(upstream=upstream, outputs=outputs, inside=inside, after=after, outside=observe())

    return attempt(f"{case.id} forced to float32", remedy)


def _through_mm(leaf: torch.Tensor) -> torch.Tensor:
    """The leaf times the identity: exact in any dtype that holds the leaf's rounded values."""
    rows = leaf.reshape(-1, leaf.shape[-1])
    identity = torch.eye(leaf.shape[-1], device=leaf.device)
    return torch.mm(rows, identity).reshape(leaf.shape)


def _rounded(leaves: Sequence[torch.Tensor], backend: Backend) -> list[torch.Tensor]:
    return [leaf.detach().to(backend.low_dtype).to(torch.float32) for leaf in leaves]


def _differentiate(case: Fp32OnlyCase, inputs: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Outputs, and gradients of the inputs where the op has any, with no AMP about."""
    inputs = [tensor.detach().requires_grad_(case.differentiable) for tensor in inputs]
    outputs = _tensors(case.op(*inputs))
    if case.differentiable:
        _backward(outputs)
    return [out.detach() for out in outputs], [tensor.grad for tensor in inputs if tensor.grad is not None]


def _backward(outputs: Sequence[torch.Tensor]) -> None:
    """Backward from a fixed weighted sum of all outputs."""
    total = torch.zeros((), dtype=torch.float64, device=outputs[0].device)
    for number, out in enumerate(outputs):
        if out.requires_grad:
            values = _real(out)
            weights = randn(*values.shape, seed=f"weights of output {number}", device=values.device, dtype=values.dtype)
            total = total + (values * weights).sum()
    total.backward()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _tensors(out: Any) -> list[torch.Tensor]:
    return [out] if isinstance(out, torch.Tensor) else list(out)


def _leaves(case: Fp32OnlyCase, backend: Backend) -> list[torch.Tensor]:
    return [
        _make(source, seed=f"{case.id} input {number}").to(backend.device_type).requires_grad_(case.differentiable)
        for number, source in enumerate(case.inputs)
    ]


def _make(source: Input, *, seed: str) -> torch.Tensor:
    if source.kind not in _KINDS:
        message = f"unknown kind of input {source.kind!r}; there are {', '.join(_KINDS)}"
        raise SuiteError(message)
    return _KINDS[source.kind](randn(*source.shape, seed=seed))


def _between(low: float, high: float, normal: torch.Tensor) -> torch.Tensor:
    uniform: torch.Tensor = torch.special.ndtr(normal)
    return low + (high - low) * uniform


def _regular(normal: torch.Tensor) -> torch.Tensor:
    """A matrix far from singular: twice the identity plus noise of a norm below 2."""
    return 2.0 * torch.eye(normal.shape[-1]) + 0.2 * normal


def _positive_definite(normal: torch.Tensor) -> torch.Tensor:
    regular = _regular(normal)
    return regular @ regular.mT / 4


_KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal": lambda normal: normal,
    "unit": functools.partial(_between, 0.1, 0.9),
    "positive": functools.partial(_between, 0.5, 2.5),
    "regular": _regular,
    "spd": _positive_definite,
    "lower": lambda normal: _regular(normal).tril(),
}
"""How each kind of `Input` comes from standard normal numbers."""


def declaration(name: str, device_type: str, dtype: str) -> str:
    """``unsupported`` or ``supported``, as torch's database of ops declares it for the device type.

    Raises:
        SuiteError: nothing was recorded for the device type.
    """
    recorded = _recorded()["devices"].get(device_type)
    if recorded is None:
        message = f"fixtures/low_precision_support.json has no record of {device_type!r}: record it first"
        raise SuiteError(message)
    return "unsupported" if name in recorded[dtype] else "supported"


@functools.cache
def _recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data.fixture("low_precision_support.json").read_text(encoding="utf-8"))
    return found
