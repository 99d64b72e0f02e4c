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
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from amp_checks.core import Check, Finding, Raised, SuiteError, attempt, bounded, exact
from amp_checks.families.fp32_only import record, remedies, values
from amp_checks.families.fp32_only.rows import Fp32OnlyCase, Input, RecordCase
from amp_checks.families.fp32_only.values import ValueCase
from amp_checks.families.ranges import checks
from amp_checks.families.ranges.inputs import RangeCase
from amp_checks.records import low_precision
from amp_checks.records.low_precision import Meets
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import dtype_name
from amp_checks.torch_api.numerics import Threshold, error_ratio, randn, same_bits

ACCURACY = Threshold(
    value=300.0,
    unit="eps(float32) * max|float64 reference|",
    healthy="up to 69 over all rows and default backends (gradient of svd_lowrank), torch 2.13.0 and 2.15.0 on a CPU",
    weakest_mutant="a float32 kernel that keeps as many bits as TF32: 2795 on linalg.inv",
    measured="amp-checks run --family fp32-only; the mutant fp32-kernel-keeps-eleven-bits",
)

_ABOUT_DTYPE = re.compile("half|float|double|dtype|precision", re.IGNORECASE)
"""What an error says that is about the dtype of an input."""


def checks_for(case: Fp32OnlyCase | ValueCase | RecordCase | RangeCase) -> Iterator[Check]:
    if isinstance(case, RecordCase):
        yield from record.checks_for(case)
        return
    if isinstance(case, ValueCase):
        yield from values.checks_for(case)
        return
    if isinstance(case, RangeCase):
        yield from checks.checks_for(case)
        return
    if case.compiled:
        yield check_forced_fp32_compiled
        return
    if not case.supported:
        yield check_low_precision_call_raises
        yield check_low_precision_input_in_region
    yield check_forced_fp32_output
    yield check_forced_fp32_accuracy
    if case.differentiable:
        yield check_forced_fp32_gradient
    yield check_forced_fp32_in_other_ways
    yield check_region_comes_back


def check_low_precision_call_raises(case: Fp32OnlyCase, backend: Backend) -> Iterator[Finding]:
    """Called in the low dtype, outside autocast, the op raises; or, where the record says so, its backward does.

    The kernels of an emulated device are not here: its row is looked up among the recorded declarations
    instead, and the finding says that nothing was run.
    """
    if backend.emulated:
        yield exact(
            f"declared, not run: {backend.dtype} support of {case.declared} on {backend.device_type}",
            actual=declaration(case.declared, backend.device_type, backend.dtype),
            expected="unsupported",
            why="torch's own declarations (fixtures/low_precision_support): an emulation cannot tell",
        )
        return
    lacks = case.lacks(backend)
    yield exact(
        f"{case.id} called with {backend.dtype} outside autocast",
        actual=_low_precision_call(case, backend),
        expected="raises in backward" if lacks == "backward" else "raises",
        why=f"recorded of {backend.device_type}: if it runs now, record low-precision support again",
    )


def _low_precision_call(case: Fp32OnlyCase, backend: Backend) -> str:
    low = [leaf.detach().to(backend.low_dtype).requires_grad_(case.differentiable) for leaf in _leaves(case, backend)]
    try:
        out = _tensors(attempt(f"{case.id} in {backend.dtype}", case.op, *low))
    except Raised as raised:
        return _kind_of(raised.error)
    if any(tensor.requires_grad for tensor in out):
        try:
            attempt("backward", _backward, out)
        except Raised as raised:
            return f"{_kind_of(raised.error)} in backward"
    return "gives " + ", ".join(dtype_name(tensor.dtype) for tensor in out)


def _kind_of(error: BaseException) -> str:
    """``raises`` for an exception about dtypes; the name of any other."""
    about_dtype = isinstance(error, RuntimeError | ValueError) and _ABOUT_DTYPE.search(str(error))
    return "raises" if about_dtype else type(error).__name__


def check_low_precision_input_in_region(case: Fp32OnlyCase, backend: Backend) -> Iterator[Finding]:
    """Given a low-dtype input inside the region, the op does what is recorded.

    It is one of three: its own FP32 rule casts up; there is an error; it passes in silence, in the low dtype.
    """
    seen = low_precision.here(case.declared, backend.device_type, backend.dtype)
    expected = Meets.UNSEEN if seen is None else seen.meets
    actual = _met(case, backend)
    declared = ""
    if backend.emulated and case.lacks(backend) == "forward" and actual is not Meets.RULE:
        # Whatever the CPU's kernel did, the device has none, by declaration.
        actual, declared = Meets.ERROR, "declared, not run: "
    yield exact(
        f"{declared}{case.id} given {backend.dtype} inside the region",
        actual=str(actual),
        expected=str(expected),
        why="recorded in fixtures/low_precision_support; autocast's rule for the op, or the want of one",
    )


def _met(case: Fp32OnlyCase, backend: Backend) -> Meets:
    low = [leaf.detach().to(backend.low_dtype) for leaf in _leaves(case, backend)]

    def call() -> Any:
        with backend.region():
            return case.op(*low)

    try:
        out = _tensors(attempt(f"{case.id} inside the region", call))
    except Raised as raised:
        if _kind_of(raised.error) != "raises":
            raise
        return Meets.ERROR
    return Meets.PASSES if any(tensor.dtype is backend.low_dtype for tensor in out) else Meets.RULE


def check_forced_fp32_output(case: Fp32OnlyCase, backend: Backend) -> Iterator[Finding]:
    """Forced to FP32, the op gives FP32, finite, bitwise what it gives for that rounded input without AMP.

    An input that is FP32 already is not rounded on its way in.
    """
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
        yield exact(
            f"output[{number}].dtype",
            actual=dtype_name(out.dtype),
            expected=dtype_name(expected.dtype),
            why="a disabled region casts nothing, and the input was float32",
        )
        yield exact(
            f"output[{number}] is finite",
            actual=bool(torch.isfinite(out).all()),
            expected=True,
            why="the input is well inside the range of float32",
        )
        yield _equal(f"output[{number}] bitwise", out, expected, "the same op on the same rounded input, no autocast")
    plain = _forced(case, backend, leaves, remedies.disabled_region)
    unrounded, _ = _differentiate(case, leaves)
    for number, (out, expected) in enumerate(zip(plain, unrounded, strict=True)):
        yield _equal(f"output[{number}] of a float32 input", out, expected, "a float32 input is not rounded on its way")


def _equal(subject: str, actual: torch.Tensor, expected: torch.Tensor, why: str) -> Finding:
    same = "equal" if same_bits(actual, expected) else "different"
    return exact(subject, actual=same, expected="equal", why=why)


def _forced(
    case: Fp32OnlyCase, backend: Backend, tensors: Sequence[torch.Tensor], way: Callable[..., Any]
) -> list[torch.Tensor]:
    """Outputs of the op forced to FP32 in that way, inside a region."""

    def run() -> Any:
        with backend.region():
            return way(backend, case.op, *tensors)

    return _tensors(attempt(f"{case.id} forced to float32", run))


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
    _, expected = _differentiate(case, _rounded(leaves, backend))
    yield from _gradients(leaves, run, expected, backend)


def _gradients(
    leaves: Sequence[torch.Tensor], run: _Run, expected: Sequence[torch.Tensor], backend: Backend, way: str = ""
) -> Iterator[Finding]:
    if any(out.requires_grad for out in run.outputs):
        attempt("backward", _backward, run.outputs)
    for number, (leaf, gradient) in enumerate(zip(leaves, expected, strict=True)):
        got = leaf.grad
        yield exact(
            f"{way}leaf[{number}].grad.dtype",
            actual="no gradient" if got is None else dtype_name(got.dtype),
            expected="float32",
            why="a gradient has the dtype of its leaf",
        )
        if got is not None:
            handed_back = gradient.to(backend.low_dtype).to(torch.float32)
            yield exact(
                f"{way}leaf[{number}].grad value",
                actual="equal" if torch.equal(got, handed_back) else "different",
                expected="equal",
                why="the op's FP32 gradient, rounded once to the low dtype; mm with the identity is exact",
            )


def check_forced_fp32_in_other_ways(case: Fp32OnlyCase, backend: Backend) -> Iterator[Finding]:
    """Forced by a decorator, by ``custom_fwd`` or inside a checkpoint, the op gives the same, and so do gradients.

    And the region goes on afterwards as it was.
    """
    for name, way in remedies.OTHER_WAYS.items():
        yield from _in_another_way(case, backend, f"{name}: ", way)


def check_forced_fp32_compiled(case: Fp32OnlyCase, backend: Backend) -> Iterator[Finding]:
    """Forced inside a function compiled with ``aot_eager``, the op gives the same, and so do gradients."""
    yield from _in_another_way(case, backend, "compiled: ", remedies.compiled)


def _in_another_way(case: Fp32OnlyCase, backend: Backend, name: str, way: Callable[..., Any]) -> Iterator[Finding]:
    leaves = _leaves(case, backend)
    run = _remedied(case, backend, leaves, way)
    reference, gradients = _differentiate(case, _rounded(leaves, backend))
    if way is remedies.checkpointed_reentrant:
        with torch.no_grad():  # as its first pass is run
            reference = _tensors(case.op(*_rounded(leaves, backend)))
    for number, (out, expected) in enumerate(zip(run.outputs, reference, strict=True)):
        yield _equal(f"{name}output[{number}] bitwise", out, expected, "what the op gives without AMP")
    if case.differentiable:
        yield from _gradients(leaves, run, gradients, backend, name)
    for where, actual, expected_dtype in (
        ("after it", run.after, backend.dtype),
        ("after the region", run.outside, "float32"),
    ):
        yield exact(
            f"{name}mm of float32 {where}",
            actual=actual,
            expected=expected_dtype,
            why="mm is lowered in an enabled region, and nowhere else",
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


def _remedied(
    case: Fp32OnlyCase, backend: Backend, leaves: Sequence[torch.Tensor], way: Callable[..., Any] | None = None
) -> _Run:
    """The remedy as the module's text shows it, or another way, with mm on float32 around the op as a probe."""
    probe = torch.ones(2, 2, device=backend.device_type)
    way = way or remedies.disabled_region
    inside: list[str] = []

    def observe() -> str:
        return dtype_name(torch.mm(probe, probe).dtype)

    def probed(*tensors: torch.Tensor) -> Any:
        if not case.compiled:
            inside.append(observe())
        return case.op(*tensors)

    def remedy() -> _Run:
        with backend.region():
            upstream = [_through_mm(leaf) for leaf in leaves]
            outputs = _tensors(way(backend, probed, *upstream))
            after = observe()
        return _Run(upstream=upstream, outputs=outputs, inside="".join(inside), after=after, outside=observe())

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


def _spread(normal: torch.Tensor) -> torch.Tensor:
    """Symmetric, with eigenvalues near 1, 2, 3, ...: their vectors are well determined."""
    return torch.diag(torch.arange(1.0, normal.shape[-1] + 1)) + 0.05 * (normal + normal.mT)


def _positive_definite(normal: torch.Tensor) -> torch.Tensor:
    regular = _regular(normal)
    return regular @ regular.mT / 4


_KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal": lambda normal: normal,
    "unit": functools.partial(_between, 0.1, 0.9),
    "positive": functools.partial(_between, 0.5, 2.5),
    "regular": _regular,
    "spread": _spread,
    "spd": _positive_definite,
    "lower": lambda normal: _regular(normal).tril(),
}
"""How each kind of `Input` comes from standard normal numbers."""


def declaration(name: str, device_type: str, dtype: str) -> str:
    """``unsupported`` or ``supported``, as torch's database of ops declares it for the device type."""
    seen = low_precision.here(name, device_type, dtype)
    declared = seen is None or (seen.declared_forward and seen.declared_backward is not False)
    return "supported" if declared else "unsupported"
