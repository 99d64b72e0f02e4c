"""What the rows of the range table state: limits, by row and by dtype and direction, each with its reason.

What is not here is claimed to be safe wherever the float64 result, rounded once, is (see `RangeCase`). Figures of
limits that follow from a formula are that formula's; the others were measured on a CPU (``amp-checks ranges``, torch
2.13.0), which is where the emulated devices' kernels come from too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from amp_checks.families.ranges.inputs import (
    FLOAT32,
    INACCURATE,
    NAN,
    OVERFLOWS,
    UNDERFLOWS,
    Limits,
    between,
    down_to,
    nowhere,
    up_to,
)

_PRODUCT = (
    "the result of a first product is rounded to 16 bits as well, and is subnormal sooner than that of the second"
)
_NORM = "the gradient x / norm divides by the norm rounded to 16 bits: subnormal below, inf above"
_NORM_ABOVE = "the gradient divides by the result, which is inf there"
_SATURATED = "a saturated row: its gradient y * (g - sum(g * y)) is a difference of nearly equal 16-bit numbers"
_ONE_MINUS = "the gradient is 1 - y * y of a y rounded to 16 bits, nearly 1: a difference of nearly equal numbers"
_SAVED_MEAN = "the kernel saves the mean in 16 bits, where it is subnormal"
_SQUARE = "x * x passes 65504 above sqrt(65504) = 255.9"
_MASK_16 = "the least float16, -65504, is near enough to a score that their sum is not the mask alone"
_ALL_MASKED = "softmax of a row that is -inf everywhere is 0 / 0 in float32 as well"
_CPU_GRID = "the gradient of the grid is a sum of differences of pixels, each rounded to 16 bits: subnormal first"
_BY_NORM = "the norm is rounded to 16 bits: subnormal below, inf above"
_INF_RESULT = "the gradient multiplies the result, which is inf there"


def _both(low: str, make: object, *directions: str) -> dict[str, Limits]:
    return {f"{low} {direction}": make for direction in directions}  # type: ignore[misc]


@functools.cache
def limits() -> Mapping[str, Mapping[str, Limits]]:
    """Row -> key -> what it states there."""
    return {**_products(), **_pointwise(), **_norms(), **_reductions(), **_losses(), **_shapes(), **_attention()}


def _products() -> dict[str, dict[str, Limits]]:
    rounded = "the sum is rounded to bfloat16 at every step, and passes its largest number sooner"
    return {
        "chain_matmul": {"float16 backward": down_to(9e-6, UNDERFLOWS, _PRODUCT)},
        "linalg_multi_dot": {"float16 backward": down_to(1.5e-5, UNDERFLOWS, _PRODUCT)},
        "linalg_vecdot": {
            "float16 forward": down_to(1.06e-5, UNDERFLOWS, "each product is rounded to 16 bits before the sum")
        },
        "bilinear": {"float16 backward": down_to(1.5e-5, UNDERFLOWS, _PRODUCT)},
        "vdot": {"bfloat16 forward": up_to(3.07e38, OVERFLOWS, rounded)},
        "cross": {"float16 forward": down_to(8.7e-6, UNDERFLOWS, "each product is rounded before the difference")},
        "gru_cell": {
            "float16 backward": up_to(58.7, INACCURATE, _ONE_MINUS),
            "bfloat16 backward": up_to(53, INACCURATE, _ONE_MINUS),
        },
        "lstm_cell": _both(
            "bfloat16", up_to(3.02e38, NAN, "a gate's sum is inf there, and inf times 0"), "forward", "backward"
        ),
        "rnn_tanh_cell": {"float16 backward": up_to(3.87, INACCURATE, _ONE_MINUS)},
        "scaled_dot_product_attention": {
            "float16 backward": up_to(518, INACCURATE, _SATURATED),
            "bfloat16 backward": up_to(520, INACCURATE, _SATURATED),
        },
        "_native_multi_head_attention": {
            "float16 forward": up_to(
                12.3, INACCURATE, "scores are rounded to 16 bits before softmax: an error of their size"
            )
        },
        "conv_transpose3d.input": {
            "float16 forward": up_to(1.17e4, OVERFLOWS, "the CPU's kernel sums over the filter's positions in 16 bits")
        },
        "mm long": {
            "float16 forward": up_to(15.99, OVERFLOWS, "a sum of 4096 passes 65504 above 65504 / 4096 = 15.99")
        },
    }


def _pointwise() -> dict[str, dict[str, Limits]]:
    exp = {
        "float16 forward": up_to(11.09, OVERFLOWS, "e^x passes 65504 above ln 65504 = 11.09"),
        "float16 backward": up_to(11.09, OVERFLOWS, "its gradient is e^x, above ln 65504 = 11.09 too large"),
        "bfloat16 forward": up_to(88.72, FLOAT32, "e^x passes 3.4e38 above 88.72, in float32 as well"),
        "bfloat16 backward": up_to(88.72, FLOAT32, "its gradient is e^x: 88.72, in float32 as well"),
    }
    hyperbolic = {"float16 forward": up_to(11.78, OVERFLOWS, "e^x / 2 passes 65504 above ln 131008 = 11.78")}
    y_squared = "the gradient squares the reciprocal, and y * y passes 65504 for inputs below 1 / 255.9"
    near_ends = "the gradient is (1 - y) y of a y rounded to 16 bits, nearly 0 or 1"
    eps_lost = "1e-8 is 0 in float16, and what it adds to a small x in float32 is missing"
    return {
        "exp": exp,
        "expm1": exp,
        "cosh": hyperbolic,
        "sinh": hyperbolic,
        "exp2": {
            "float16 forward": up_to(16.0, OVERFLOWS, "2^x passes 65504 at 16"),
            "float16 backward": up_to(16.0, OVERFLOWS, "2^x passes 65504 at 16; " + _INF_RESULT),
        },
        "log": {"float16 backward": down_to(1.59e-5, OVERFLOWS, "1 / x passes 65504 below 1 / 65504 = 1.53e-5")},
        "log10": {
            "float16 backward": up_to(
                28449, UNDERFLOWS, "1 / (x ln 10): the product is inf above 65504 / ln 10 = 28449"
            )
        },
        "pow.Scalar": {
            "float16 backward": up_to(
                27.35, OVERFLOWS, "1.5^x passes 65504 above ln 65504 / ln 1.5 = 27.35; " + _INF_RESULT
            )
        },
        "pow.Tensor_Tensor": {
            "float16 backward": between(
                0.0316, INACCURATE, 58.1, OVERFLOWS, "powers and logarithms of the gradient are rounded on the way"
            ),
            "bfloat16 backward": down_to(
                0.015, INACCURATE, "powers and logarithms of the gradient are rounded on the way"
            ),
        },
        "reciprocal": {"float16 backward": down_to(3.91e-3, OVERFLOWS, y_squared)},
        "rsqrt": {
            "float16 backward": down_to(
                6.15e-4, OVERFLOWS, "the gradient cubes the result: x^-1.5 passes 65504 below 6.15e-4"
            )
        },
        "atan2": {
            "float16 backward": between(
                6.2e-5,
                INACCURATE,
                253,
                INACCURATE,
                "the gradient divides by x * x + y * y: subnormal below, inf above sqrt(65504) = 255.9",
            )
        },
        "addcdiv": {
            "float16 backward": down_to(7.24e-3, OVERFLOWS, "the gradient divides by the square of the divisor")
        },
        "div": {"float16 backward": down_to(6.71e-3, OVERFLOWS, "the gradient divides by the divisor twice")},
        "square": {
            "cpu float16 forward": up_to(255.9, OVERFLOWS, _SQUARE),
            "float16 backward": up_to(32752, OVERFLOWS, "2 x passes 65504 above 32752"),
            "bfloat16 forward": up_to(1.84e19, FLOAT32, "x * x passes 3.4e38 above 1.84e19, in float32 as well"),
        },
        "sigmoid": {
            "float16 backward": up_to(227, INACCURATE, near_ends),
            "bfloat16 backward": up_to(245, INACCURATE, near_ends),
        },
        "tanh": {
            "float16 backward": up_to(248, INACCURATE, _ONE_MINUS),
            "bfloat16 backward": up_to(268, INACCURATE, _ONE_MINUS),
        },
        "over x plus 1e-8": {
            "cpu float16 backward": down_to(7.09e-3, OVERFLOWS, y_squared),
            "cuda float16 forward": down_to(4.6e-6, INACCURATE, eps_lost),
        },
        "log of x plus 1e-8": {"float16 forward": down_to(3e-7, INACCURATE, eps_lost)},
    }


def _norms() -> dict[str, dict[str, Limits]]:
    variance = "the variance passes 65504 above, and is subnormal below"
    eps_12 = "the variance is subnormal below, and 1e-12 is 0 in float16: the quotient is wrong, then x / 0"
    statistics = "the kernel keeps the mean and 1 / sqrt(variance + eps) in 16 bits"
    mean_square = _SQUARE + "; below, the mean square is subnormal"
    cubed = "the gradient cubes the reciprocal root"
    sum_twice = "the gradient divides by the sum twice, and is subnormal on the way"
    by_hand_5 = between(5.4e-6, INACCURATE, 336, INACCURATE, variance)
    return {
        "layer_norm": {"float16 backward": down_to(5.2e-6, INACCURATE, _SAVED_MEAN)},
        "native_layer_norm": {"float16 backward": down_to(1.15e-5, INACCURATE, _SAVED_MEAN)},
        "group_norm": {"float16 backward": down_to(1.1e-5, INACCURATE, _SAVED_MEAN)},
        "group_norm eps 1e-12": {
            "float16 backward": down_to(3e-5, NAN, "1 / standard deviation passes 65504, and inf times 0 is NaN")
        },
        "renorm": {
            "bfloat16 backward": up_to(1.64e19, INACCURATE, "the gradient squares the norm, which passes 3.4e38")
        },
        "dist": {"float16 backward": up_to(2.76e4, INACCURATE, _NORM_ABOVE)},
        "frobenius_norm.dim": {"float16 backward": between(9.5e-7, INACCURATE, 2.72e4, INACCURATE, _NORM)},
        "norm.Scalar": {"float16 backward": between(1.13e-6, INACCURATE, 2.94e4, INACCURATE, _NORM)},
        "norm.ScalarOpt_dim": {"float16 backward": between(4.6e-6, INACCURATE, 4.78e4, INACCURATE, _NORM)},
        "linalg_vector_norm": {"float16 backward": between(1.13e-6, INACCURATE, 2.97e4, INACCURATE, _NORM)},
        "linalg_matrix_norm": {"float16 backward": up_to(4.58e4, INACCURATE, _NORM_ABOVE)},
        "linalg_matrix_norm.str_ord": {"float16 backward": between(1.8e-6, INACCURATE, 3.69e4, INACCURATE, _NORM)},
        "norm long": {"float16 backward": between(1.8e-7, INACCURATE, 1760, INACCURATE, _NORM)},
        "cosine_similarity": {
            "float16 forward": between(
                4.5e-6, INACCURATE, 4.11e4, INACCURATE, _BY_NORM + "; eps = 1e-8 is 0 in float16"
            ),
            "float16 backward": between(1.87e-5, INACCURATE, 2.3e4, UNDERFLOWS, _BY_NORM),
        },
        "batch_norm training": {"float16 forward": down_to(3.8e-6, INACCURATE, statistics + ": the mean is subnormal")},
        "batch_norm training eps 1e-12": _both(
            "float16",
            down_to(3.19e-5, NAN, statistics + ", and 1 / standard deviation passes 65504"),
            "forward",
            "backward",
        ),
        "instance_norm": {"float16 forward": down_to(6.6e-6, INACCURATE, statistics + ": the mean is subnormal")},
        "local_response_norm": {
            **_both("float16", up_to(253, INACCURATE, _SQUARE), "forward", "backward"),
            "bfloat16 backward": up_to(
                1.0e17, INACCURATE, "the gradient multiplies powers of the divisor, a subnormal number"
            ),
        },
        "normalize": {
            "cpu float16 forward": between(
                2.9e-6, INACCURATE, 2.61e4, INACCURATE, _BY_NORM + "; eps = 1e-12 is 0 in float16"
            ),
            "cpu float16 backward": up_to(2.53e4, UNDERFLOWS, _BY_NORM),
        },
        "var": {"float16 backward": up_to(5.27e4, OVERFLOWS, "x - mean is formed in 16 bits, and passes 65504")},
        "var long": {"float16 backward": up_to(6.48e4, OVERFLOWS, "x - mean is formed in 16 bits, and passes 65504")},
        "std": {
            "float16 backward": between(
                1.3e-5,
                INACCURATE,
                1.6e4,
                INACCURATE,
                "the gradient divides by twice the deviation: 16 bits, then subnormal",
            )
        },
        "layer norm by hand eps 1e-5": {
            "float16 forward": by_hand_5,
            "float16 backward": up_to(336, INACCURATE, variance),
        },
        "layer norm by hand eps 1e-12": {
            "float16 forward": between(4e-3, INACCURATE, 362, INACCURATE, eps_12),
            "float16 backward": between(9e-3, OVERFLOWS, 362, INACCURATE, eps_12),
        },
        "rms norm by hand eps 1e-6": {
            "cpu float16 forward": between(2.8e-3, INACCURATE, 253, INACCURATE, mean_square),
            "cpu float16 backward": between(4.4e-2, OVERFLOWS, 132, INACCURATE, cubed + ": inf below, subnormal above"),
            "cpu bfloat16 backward": up_to(2.8e13, INACCURATE, cubed + ": subnormal above"),
        },
        "rms norm by hand eps 1e-12": {
            "cpu float16 forward": between(2.9e-3, INACCURATE, 253, INACCURATE, mean_square),
            "cpu float16 backward": between(4.8e-2, OVERFLOWS, 211, INACCURATE, cubed + ": inf below, subnormal above"),
            "cpu bfloat16 backward": up_to(3.4e13, INACCURATE, cubed + ": subnormal above"),
        },
        "over norm plus 1e-8": {
            "cpu float16 forward": between(2.1e-6, INACCURATE, 2.34e4, INACCURATE, _BY_NORM),
            "cpu float16 backward": up_to(
                1.75e4, UNDERFLOWS, "the gradient divides by the norm twice, and is subnormal on the way"
            ),
        },
        "over sum plus 1e-8": {
            "cpu float16 forward": between(
                2.4e-7, INACCURATE, 4920, INACCURATE, "the sum passes 65504 above; below, 1e-8 is missing from it"
            ),
            **_both("cpu float16", up_to(2000, UNDERFLOWS, sum_twice), "backward"),
            **_both("cpu bfloat16", up_to(1.18e37, UNDERFLOWS, sum_twice), "backward"),
        },
    }


def _reductions() -> dict[str, dict[str, Limits]]:
    long = "a sum of 4096 passes 65504 above 65504 / 4096 = 15.99"
    eighth = "x^8 passes 65504 above 65504^(1/8) = 4.0"
    lse = "the gradient is exp(x - lse) of an lse of 8.3 rounded to 16 bits: its absolute error is a relative one here"
    return {
        "sum long": {"float16 forward": up_to(15.99, OVERFLOWS, long)},
        "cumsum long": {"float16 forward": up_to(15.99, OVERFLOWS, long)},
        "cumprod": {
            "float16 backward": between(
                1.8e-5, INACCURATE, 39.3, OVERFLOWS, "the gradient divides sums of cumulative products by x, in 16 bits"
            )
        },
        "cumprod of 8": {
            "float16 forward": up_to(4.0, OVERFLOWS, eighth),
            "float16 backward": up_to(4.0, OVERFLOWS, eighth + "; " + _INF_RESULT),
        },
        "softmax.int": {
            "float16 backward": up_to(13.2, INACCURATE, _SATURATED),
            "bfloat16 backward": up_to(13.2, INACCURATE, _SATURATED),
        },
        "logsumexp long": {
            "float16 backward": up_to(1.24e-3, INACCURATE, lse),
            "bfloat16 backward": up_to(2.4e-2, INACCURATE, lse),
        },
        "softmax without shift": {
            "cpu float16 forward": up_to(10.95, INACCURATE, "the sum of e^x passes 65504 about ln 65504 = 11.09"),
            "cpu float16 backward": up_to(
                7.9, INACCURATE, "the gradient divides by the sum of e^x twice, and is subnormal on the way"
            ),
            "cpu bfloat16 backward": up_to(
                8.9, INACCURATE, "the gradient divides by the sum of e^x twice, with one rounding more"
            ),
        },
        "log of softmax": {
            "cpu float16 forward": up_to(
                6.95, INACCURATE, "a probability below 6.1e-5 is subnormal, and its logarithm wrong"
            ),
            "cpu float16 backward": up_to(5.42, NAN, "a probability that is 0 in float16 gives 1 / 0 times 0"),
            "cpu bfloat16 forward": up_to(
                46.2, OVERFLOWS, "a probability below the smallest bfloat16 is 0, and its logarithm -inf"
            ),
        },
    }


def _losses() -> dict[str, dict[str, Limits]]:
    saturated = "the quotient is rounded to 16 bits, and its gradient is a difference"
    return {
        "mse by hand": {
            "cpu float16 forward": up_to(255.9, OVERFLOWS, _SQUARE),
            "cpu float16 backward": up_to(32752, OVERFLOWS, "2 (x - y) passes 65504 above 32752"),
        },
        "dice by hand": {
            "cpu float16 forward": up_to(657, OVERFLOWS, "the sum over 64 elements, twice, passes 65504"),
            "cpu float16 backward": up_to(20.3, INACCURATE, saturated),
            "cpu bfloat16 backward": up_to(13.2, INACCURATE, saturated),
            "cuda float16 backward": up_to(24.9, INACCURATE, saturated),
            "cuda bfloat16 backward": up_to(7.9, INACCURATE, saturated),
        },
    }


def _shapes() -> dict[str, dict[str, Limits]]:
    return {
        "grid_sampler": {"float16 backward": down_to(3e-5, UNDERFLOWS, _CPU_GRID)},
        "grid_sampler_2d": {
            "float16 backward": down_to(6.6e-5, UNDERFLOWS, _CPU_GRID),
            "bfloat16 backward": down_to(1.5e-38, UNDERFLOWS, _CPU_GRID),
        },
        "grid_sampler_3d": {"float16 backward": down_to(4.9e-5, UNDERFLOWS, _CPU_GRID)},
        "adaptive_avg_pool3d": {
            "float16 forward": up_to(2.5e4, OVERFLOWS, "the CPU's kernel sums in 16 bits before it divides")
        },
    }


def _attention() -> dict[str, dict[str, Limits]]:
    scores = "q @ k passes 65504 before it is divided by sqrt(8)"
    by_hand = "attention by hand, row masked: "
    sdpa = "scaled_dot_product_attention, row masked: "
    one = "the CPU's kernel differentiates such a row as if each weight were 1, not 1 / n, in float32 as well"
    never = {
        f"{low} {direction}": nowhere(FLOAT32, _ALL_MASKED)
        for low in ("float16", "bfloat16")
        for direction in ("forward", "backward")
    }
    return {
        "attention by hand": {
            "float16 forward": up_to(159, NAN, scores),
            "cpu float16 backward": up_to(5.8, INACCURATE, _SATURATED),
            "cuda float16 backward": up_to(11.3, INACCURATE, _SATURATED),
        },
        by_hand + "fill -inf": never,
        by_hand + "add -inf": never,
        by_hand + "add min twice": {
            key: nowhere(FLOAT32, "twice the least number is -inf: " + _ALL_MASKED) for key in never
        },
        "MultiheadAttention with weights, row masked": never,
        by_hand + "fill min": {
            "float16 forward": up_to(137, NAN, scores),
            "cpu float16 backward": up_to(8.4, INACCURATE, _SATURATED),
            "cuda float16 backward": up_to(6.8, INACCURATE, _SATURATED),
        },
        by_hand + "add min": {
            "float16 forward": up_to(5.6, INACCURATE, _MASK_16),
            "float16 backward": up_to(5.3, INACCURATE, _MASK_16),
        },
        sdpa + "min": {
            "float16 forward": up_to(0.107, INACCURATE, _MASK_16 + " in the kernel's float32"),
            **{f"{low} backward": nowhere(FLOAT32, one) for low in ("float16", "bfloat16")},
        },
        sdpa + "bool": {"float16 backward": up_to(9.1, INACCURATE, _SATURATED)},
        sdpa + "-inf": {"float16 backward": up_to(6.0, INACCURATE, _SATURATED)},
        "MultiheadAttention": {
            "float16 forward": down_to(1.7e-5, UNDERFLOWS, _PRODUCT),
            "float16 backward": down_to(1.35e-5, UNDERFLOWS, _PRODUCT),
        },
        "MultiheadAttention, row masked": {
            "float16 forward": down_to(1.56e-5, UNDERFLOWS, _PRODUCT),
            "float16 backward": between(1.1e-5, UNDERFLOWS, 6.5, INACCURATE, _PRODUCT + "; above, " + _SATURATED),
        },
    }


_EPS_8 = "1e-8 is 0 in float16: x / 0"
_EPS_12 = "1e-12 is 0 in float16: 0 / 0"
_EPS_6 = "1e-6 is subnormal in float16, and the cube of 1 / sqrt(1e-6) = 1000 is inf"

AT_ZERO: Mapping[str, Mapping[str, str]] = {
    "log of x plus 1e-8": {"float16 forward": "1e-8 is 0 in float16: log 0"},
    "over x plus 1e-8": {"cuda float16 forward": _EPS_8},
    "layer norm by hand eps 1e-12": {"float16 forward": _EPS_12},
    "rms norm by hand eps 1e-6": {"cpu float16 backward": _EPS_6},
    "rms norm by hand eps 1e-12": {"cpu float16 forward": _EPS_12},
    "over norm plus 1e-8": {"cpu float16 forward": _EPS_8},
    "over sum plus 1e-8": {"cpu float16 forward": _EPS_8},
}
"""Row -> key -> why all-zero inputs do not give what rounding the float64 result would: 0 / (0 + eps), mostly."""
