"""Errors of an audited program's first loss and gradients, against float64 and in FP32's own unit."""

from __future__ import annotations

import dataclasses
import math

import torch

from amp_checks.audit.watching.compact import Gradients
from amp_checks.audit.watching.trace import Trace
from amp_checks.torch_api.numerics import Threshold

GRADIENT_ERROR = Threshold(
    value=24.0,
    unit="eps of the 16-bit dtype; FP32's own error, or three times what rounding the parameters does, where more",
    healthy="up to 12 on the corrected fixtures: a unit whose ReLU flips is the upper end, most are below 1",
    weakest_mutant="rotary phases by a 16-bit product: 127, the least under 20 seeds",
    measured="benchmarks/audit_thresholds.py",
)
LOSS_ERROR = Threshold(
    value=5.0,
    unit="as of GRADIENT_ERROR, of the first loss",
    healthy="0 to 0.41 on the corrected fixtures; losses that cancel: up to 3.7 in 900 draws of a critic's",
    weakest_mutant="a mean by a sum around 64 in float16 (tests/audit/test_causes.py): 11.5, the least under 12 seeds",
    measured="benchmarks/audit_thresholds.py",
)
SCALE_BIAS = Threshold(
    value=0.01,
    unit="factor by which all gradients together differ from the float64 ones, less 1",
    healthy="up to 0.0021 on the corrected fixtures, bfloat16 the upper end",
    weakest_mutant="gradients unscaled by a factor 1.9 % off: 0.0188",
    measured="benchmarks/audit_thresholds.py",
)

_PERTURBED = 3.0
"""Times the root mean square of what rounding the parameters does that is one unit of error: eps of a sum of many terms
has the root mean square eps / sqrt(12)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The runs whose first loss and gradients are compared.

    Attributes:
        amp, fp32: the program as it is, and in float32.
        exact: in float64, or where that does not run the float32 one.
        perturbed: as ``exact``, with parameters moved by rounding errors; empty where errors are as they should be.
    """

    amp: Trace
    fp32: Trace
    exact: Trace
    perturbed: tuple[Trace, ...] = ()

    def with_gradients(self, gradients: Gradients) -> Compared:
        """The same, had AMP given these gradients."""
        return dataclasses.replace(self, amp=dataclasses.replace(self.amp, gradients=gradients))


def low_dtype(trace: Trace) -> torch.dtype | None:
    """The 16-bit dtype of a program; bfloat16 where it uses both; None where it uses none."""
    found = trace.low_dtypes()
    return torch.bfloat16 if torch.bfloat16 in found else next(iter(found), None)


_DRAWING = {f"aten::{name}" for name in ("rand_like", "randn_like", "normal_", "uniform_", "exponential_", "bernoulli")}


def draws_in_16_bits(trace: Trace) -> bool:
    """Whether forward drew 16-bit random numbers: other ones than float32 and float64 draw from the same seed."""
    return any(
        not op.backward and op.name.partition(".")[0] in _DRAWING and op.outputs[0].itemsize == 2 for op in trace.ops
    )


def relative(actual: torch.Tensor, reference: torch.Tensor) -> float:
    """``|actual - reference| / |reference|`` (Euclidean); 0 where both are zero."""
    size = reference.norm().item()
    error = (actual - reference).norm().item()
    return error / size if size else (0.0 if error == 0.0 else math.inf)


def ratios(runs: Compared) -> dict[str, float]:
    """Error of each parameter's first gradient in the unit of `GRADIENT_ERROR`."""
    low = low_dtype(runs.amp)
    exact = runs.exact
    found: dict[str, float] = {}
    if low is None or runs.amp.failure is not None or draws_in_16_bits(runs.amp):
        return found
    largest = max((value.norm().item() for value in exact.gradients.values()), default=0.0)
    for name, actual in runs.amp.gradients.items():
        expected = exact.gradients.get(name)
        full = runs.fp32.gradients.get(name)
        if expected is None or full is None or expected.shape != actual.shape:
            continue
        # A gradient that is zero in exact arithmetic (a bias before a normalisation) is all rounding error.
        if not expected.norm().item() > 1e-6 * largest:
            continue
        moved = [relative(trace.gradients.get(name, expected), expected) for trace in runs.perturbed]
        unit = max(torch.finfo(low).eps, relative(full, expected), _PERTURBED * _size(moved))
        found[name] = relative(actual, expected) / unit
    return found


def bias(runs: Compared) -> float | None:
    """Relative size of AMP's gradients along the reference's, less 1; None where there is nothing to compare.

    A wrong factor is common to all gradients and leaves their direction: elsewhere there is none, and this is 0.0.
    """
    exact = runs.exact.gradients
    pairs = [
        (actual, exact[name])
        for name, actual in runs.amp.gradients.items()
        if name in exact and exact[name].shape == actual.shape
    ]
    size = sum((expected * expected).sum().item() for _, expected in pairs)
    if not pairs or not size or low_dtype(runs.amp) is None or draws_in_16_bits(runs.amp):
        return None
    factor = sum((actual * expected).sum().item() for actual, expected in pairs) / size
    length = sum((actual * actual).sum().item() for actual, _ in pairs)
    rest = length - factor * factor * size
    same_direction = rest < 0.02 * length
    return factor - 1.0 if same_direction and abs(factor - 1.0) > math.sqrt(max(rest, 0.0) / size) else 0.0


def scale_bias(runs: Compared) -> float:
    """From which factor on, less 1, gradients are off: `SCALE_BIAS`, or what rounding the parameters explains."""
    moved = [bias(runs.with_gradients(trace.gradients)) or 0.0 for trace in runs.perturbed]
    return max(SCALE_BIAS.value, 2.0 * _PERTURBED * _size(moved))


WRONG_SIZE = 8.0
"""Times that gradients may be too large or too small before it is no rounding, wherever they point."""


def wrong_size(runs: Compared) -> float | None:
    """By what factor AMP's gradients are longer than the reference's, where that is far from 1 for most of them alike.

    A second fault may turn gradients so far that no factor is common to them; their lengths still have one. Elements
    that are zero under AMP do not count: what is flushed is another finding.
    """
    lengths = []
    for name, actual in runs.amp.gradients.items():
        traces = (runs.exact, runs.fp32)
        others = [trace.gradients[name] for trace in traces if name in trace.gradients]
        if len(others) == 2 and all(other.shape == actual.shape for other in others):
            lengths.append([value[actual != 0].norm().item() for value in (actual, *others)])
    used, exact, full = (math.hypot(*column) for column in zip(*lengths, strict=True)) if lengths else (0.0, 0.0, 0.0)
    if not used or not exact or draws_in_16_bits(runs.amp) or not 0.5 < full / exact < 2.0:
        return None
    factor = used / exact
    if abs(factor - 1.0) < 2.0 * _PERTURBED * perturbed_error(runs):
        return None  # the gradient is so small that rounding the parameters makes another of it
    alike = [0.25 < own / (other * factor) < 4.0 for own, other, _ in lengths if other > 1e-6 * exact]
    far = not 1.0 / WRONG_SIZE < factor < WRONG_SIZE
    return factor if far and 4 * sum(alike) >= 3 * len(alike) else None


DEPENDENCE = 1e-3
"""Relative difference that the loss scale alone makes of a gradient in float64, from which it is a finding: rounding
makes 1e-13 of it, an eps in a denominator 1e-6, a bound or a term meant for unscaled gradients 0.01 to 1."""


def worst_dependence(runs: Compared, with_scaler: Trace | None) -> tuple[str, float] | None:
    """The parameter whose gradient, as backward gave it, depends most on the loss scale, and how much; or None.

    What is done to gradients between backward and step is not in it. A gradient that is zero in exact arithmetic (a
    bias before a normalisation) is all rounding error, which need not be small: a hook may have normalised it.
    """
    plain, full = runs.exact.raw_gradients, runs.fp32.raw_gradients
    scaled = with_scaler.raw_gradients if with_scaler is not None else {}
    least = 1e-6 * max((value.norm().item() for value in plain.values()), default=0.0)
    pairs = [
        (name, relative(value, plain[name]))
        for name, value in scaled.items()
        if name in plain
        and plain[name].shape == value.shape
        and max(value.norm().item(), plain[name].norm().item()) > least
        and relative(full.get(name, plain[name]), plain[name]) < 0.5
    ]
    name, error = max(pairs, key=lambda pair: pair[1], default=("", 0.0))
    return (name, error) if error > DEPENDENCE else None


def is_one_factor(runs: Compared) -> bool:
    """Whether the gradients are right but for a factor that they share."""
    factor = 1.0 + (bias(runs) or 0.0)
    gradients = Gradients({name: value / factor for name, value in runs.amp.gradients.items()} if factor else {})
    errors = ratios(runs.with_gradients(gradients)).values()
    return bool(gradients) and all(ratio < GRADIENT_ERROR.value for ratio in errors)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The first loss, or the first finite one while no step has moved weights.

    Attributes:
        amp, exact, fp32: its value under AMP, in the reference, in FP32.
        perturbed: how far rounding the parameters moves it (root mean square); 0.0 where that was not tried.
    """

    amp: float
    exact: float
    fp32: float
    perturbed: float


def first_losses(runs: Compared) -> Losses | None:
    """The first loss in the three runs that are compared; None where there is nothing to compare."""
    exact = runs.exact
    if draws_in_16_bits(runs.amp):
        return None
    unmoved = max(runs.amp.first_real.values(), default=0)
    for place, (step, amp) in enumerate(runs.amp.losses):
        others = [trace.losses[place][1] for trace in (exact, runs.fp32) if place < len(trace.losses)]
        if step <= unmoved and len(others) == 2 and all(map(math.isfinite, (amp, *others))):
            moved = [trace.losses[place][1] - others[0] for trace in runs.perturbed if place < len(trace.losses)]
            return Losses(amp=amp, exact=others[0], fp32=others[1], perturbed=_size(moved)) if others[0] else None
    return None


def _size(values: list[float]) -> float:
    """Root mean square of those that are finite."""
    finite = [value for value in values if math.isfinite(value)]
    return math.hypot(*finite) / math.sqrt(len(finite)) if finite else 0.0


def loss_ratio(runs: Compared) -> float | None:
    """Error of the first loss in the unit of `GRADIENT_ERROR`; None where there is nothing to compare."""
    low, losses = low_dtype(runs.amp), first_losses(runs)
    if low is None or losses is None:
        return None
    unit = max(torch.finfo(low).eps * abs(losses.exact), abs(losses.fp32 - losses.exact), _PERTURBED * losses.perturbed)
    return abs(losses.amp - losses.exact) / unit


def peaks_of_backward(trace: Trace) -> list[float]:
    """The largest magnitude of each float16 output in the first iteration's backward; infinite ones are, NaN is not."""
    return [
        max(abs(op.low), abs(op.high))
        for op in trace.ops
        if op.backward and op.step == 0 and torch.float16 in op.outputs and not math.isnan(op.high)
    ]


def headroom(trace: Trace) -> float:
    """By how large a power of two the first iteration's float16 values in backward may be multiplied; at least 1.0."""
    peak = max(filter(math.isfinite, peaks_of_backward(trace)), default=0.0)
    return max(2.0 ** math.floor(math.log2(65504.0 / peak)), 1.0) if peak else 2.0**15


UNPLACED_ERROR = 0.3
"""Relative error of all gradients together above which they are wrong even where no op stands out: a few
units whose ReLU flips in 16 bits make up to 0.1 of it in small networks."""


def total_error(runs: Compared) -> float:
    """``|g - g64| / |g64|`` over all first gradients together."""
    return _total_error(runs.amp.gradients, runs.exact.gradients)


def perturbed_error(runs: Compared) -> float:
    """As `total_error`, of what rounding the parameters does to the gradients (root mean square); 0.0 if not tried."""
    exact = runs.exact.gradients
    return _size([_total_error(trace.gradients, exact) for trace in runs.perturbed])


def _total_error(gradients: Gradients, exact: Gradients) -> float:
    pairs = [(value, exact[name]) for name, value in gradients.items() if name in exact]
    size = sum((expected * expected).sum().item() for _, expected in pairs)
    error = sum(((actual - expected) ** 2).sum().item() for actual, expected in pairs if actual.shape == expected.shape)
    return math.sqrt(error / size) if size else 0.0


TOO_COARSE = 0.15
"""Relative error of all gradients together above which 16 bits are too coarse, though rounding explains it: networks
of the suite stay below 0.04, a residual of 1 around 3000 gives 0.47 and more."""


def too_coarse(runs: Compared) -> bool:
    """Whether gradients are as wrong as that, and rounding the parameters explains it."""
    error = total_error(runs) if runs.perturbed else 0.0
    return TOO_COARSE < error < math.inf and are_small(runs)


def ill_conditioned(runs: Compared) -> bool:
    """Whether FP32's own errors are so large that the program itself magnifies rounding, whatever the precision."""
    exact = runs.exact.gradients
    own = [relative(value, exact[name]) for name, value in runs.fp32.gradients.items() if name in exact]
    finite = sorted(value for value in own if math.isfinite(value))
    return bool(finite) and finite[len(finite) // 2] > 16.0 * torch.finfo(torch.float32).eps


def are_small(runs: Compared, *, of_limit: float = 1.0) -> bool:
    """Whether the errors of loss and gradients are as the dtype explains, and gradients share no factor.

    ``of_limit``: the part of each limit that they are to stay below.
    """
    loss = loss_ratio(runs)
    return (
        (loss is None or loss < of_limit * LOSS_ERROR.value)
        and all(ratio < of_limit * GRADIENT_ERROR.value for ratio in ratios(runs).values())
        and abs(bias(runs) or 0.0) < of_limit * scale_bias(runs)
    )


def commutes_with_the_scale(runs: Compared) -> bool:
    """Whether what the program made of scaled gradients is what the reference made of unscaled ones.

    At each optimizer's first real step, of all gradients that were changed while scaled: they agree, and so do the
    changes, each to half its size. What takes a scaled gradient for an unscaled one is off by the loss scale.
    """
    exact, amp = runs.exact, runs.amp
    errors = ratios(runs)
    frozen = {name for name in amp.modified if _is_zero_in(name, amp) and _is_zero_in(name, exact)}
    if not (errors.keys() | frozen) & amp.modified or any(ratio >= GRADIENT_ERROR.value for ratio in errors.values()):
        return False
    for name in amp.modified:
        traces = [(trace.gradients.get(name), trace.raw_gradients.get(name)) for trace in (amp, exact)]
        pairs = [(used, given) for used, given in traces if used is not None and given is not None]
        if len(pairs) != 2 or len({value.shape for pair in pairs for value in pair}) != 1:
            return False
        (actual, before), (expected, given) = pairs
        error = ((actual - before) - (expected - given)).norm().item()
        rounding = 1e-5 * given.norm().item()
        if not error <= 0.5 * (expected - given).norm().item() + rounding or not relative(actual, expected) < 0.5:
            return False
    return True


def _is_zero_in(name: str, trace: Trace) -> bool:
    return name in trace.gradients and not bool(trace.gradients[name].any())
