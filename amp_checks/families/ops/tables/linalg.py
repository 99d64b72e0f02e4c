"""Linear algebra and Fourier transforms: what the CPU's autocast runs in float32."""

from __future__ import annotations

from amp_checks.families.ops.inputs import T, Values, fixed
from amp_checks.families.ops.rows import (
    COMPLEX,
    LOWER,
    POSITIVE,
    PRODUCTS_INSIDE,
    REFLECTOR,
    REGULAR,
    RUN,
    SEPARATED,
    SPD,
    SUBCLASS_INSIDE,
    WEIGHT,
    op,
    x,
)

_SQUARE = x(5, 5, draw=REGULAR)
_SEPARATED = x(5, 5, draw=SEPARATED)
_TALL = x(6, 4, draw=REGULAR)
_SPD = x(5, 5, draw=SPD)
_LOWER = x(5, 5, draw=LOWER)
_PIVOTS = fixed(5, values=(1, 2, 3, 4, 5), dtype="int32")
DECOMPOSITION = "decomposition"
_RANK = "a whole number"
_BLOCK = T((2, 2, 4), Values.INTEGERS, values=(2, 0, 0.25, 0, 0, 1, 0, 0.5, 0.5, 0, 3, 0, 0, 0.25, 0, 1.5))

FACTORS = (
    op("_lu_with_info", _SQUARE, outputs=(RUN, "int32", "int32")),
    op("cholesky", _SPD),
    op("geqrf", _TALL, outputs=(RUN, RUN), no_gradient="torch has no derivative of it"),
    op("linalg_cholesky", _SPD),
    op("linalg_cholesky_ex", _SPD, outputs=(RUN, "int32")),
    op("linalg_eig", _SEPARATED, outputs=(COMPLEX, COMPLEX), free_phase=True, noise=DECOMPOSITION),
    op("linalg_eigh", _SPD, outputs=(RUN, RUN), free_phase=True, noise=DECOMPOSITION),
    op("linalg_eigvals", _SEPARATED, outputs=(COMPLEX,), noise=DECOMPOSITION),
    op("linalg_eigvalsh", _SPD, listed_only=SUBCLASS_INSIDE, noise=DECOMPOSITION),
    op("linalg_householder_product", x(6, 4, draw=WEIGHT), x(4, draw=REFLECTOR), noise=DECOMPOSITION),
    op("linalg_matrix_sqrth", _SPD, noise=DECOMPOSITION),
    op("linalg_qr", _TALL, outputs=(RUN, RUN)),
    op("linalg_svd", _TALL, False, outputs=(RUN, RUN, RUN), free_phase=True, noise=DECOMPOSITION),
    op("linalg_svdvals", _TALL, listed_only=SUBCLASS_INSIDE, noise=DECOMPOSITION),
    op("orgqr", x(6, 4, draw=WEIGHT), x(4, draw=REFLECTOR), noise=DECOMPOSITION),
    op("ormqr", x(6, 4, draw=WEIGHT), x(4, draw=REFLECTOR), x(6, 3), noise=DECOMPOSITION),
    op("qr", _TALL, outputs=(RUN, RUN)),
    op("svd", _TALL, outputs=(RUN, RUN, RUN), free_phase=True, noise=DECOMPOSITION),
)

SOLVERS = (
    op("cholesky_inverse", _LOWER),
    op("cholesky_solve", x(5, 2), _LOWER),
    op("inverse", _SQUARE),
    op("linalg_inv", _SQUARE),
    op("linalg_inv_ex", _SQUARE, outputs=(RUN, "int32")),
    op(
        "linalg_lstsq", _TALL, x(6, 2), kwargs={"driver": "gels"}, outputs=(RUN, RUN, "int64", RUN), noise=DECOMPOSITION
    ),
    op("linalg_solve", _SQUARE, x(5, 2)),
    op("linalg_tensorinv", _BLOCK, 2),
    op("linalg_tensorsolve", _BLOCK, x(2, 2)),
    op("lu_solve", x(5, 2), _SQUARE, _PIVOTS),
    op("pinverse", _TALL, listed_only=PRODUCTS_INSIDE),
    op("triangular_solve", x(5, 2), _LOWER, False, outputs=(RUN, RUN)),
)

MEASURES = (
    op("linalg_cond", _SQUARE, listed_only=SUBCLASS_INSIDE),
    op("linalg_cond.p_str", _SQUARE, "nuc", listed_only=SUBCLASS_INSIDE),
    op("linalg_matrix_rank", _SQUARE, 0.1, outputs=("int64",), no_gradient=_RANK),
    op(
        "linalg_matrix_rank.atol_rtol_float",
        _SQUARE,
        kwargs={"atol": 0.1, "rtol": 0.1},
        outputs=("int64",),
        no_gradient=_RANK,
    ),
    op(
        "linalg_matrix_rank.atol_rtol_tensor",
        _SQUARE,
        kwargs={"atol": x(draw=POSITIVE), "rtol": x(draw=POSITIVE)},
        outputs=("int64",),
        no_gradient=_RANK,
    ),
    op("linalg_matrix_rank.tol_tensor", _SQUARE, x(draw=POSITIVE), outputs=("int64",), no_gradient=_RANK),
)

FOURIER = (
    op("fft_fft", x(4, 6), outputs=(COMPLEX,)),
    op("fft_fft2", x(4, 6), outputs=(COMPLEX,)),
    op("fft_fftn", x(4, 6), outputs=(COMPLEX,)),
    op("fft_hfft", x(4, 6)),
    op("fft_ifft", x(4, 6), outputs=(COMPLEX,)),
    op("fft_ifft2", x(4, 6), outputs=(COMPLEX,)),
    op("fft_ifftn", x(4, 6), outputs=(COMPLEX,)),
    op("fft_ihfft", x(4, 6), outputs=(COMPLEX,)),
    op("fft_irfft", x(4, 6)),
    op("fft_irfft2", x(4, 6)),
    op("fft_irfftn", x(4, 6)),
    op("fft_rfft", x(4, 6), outputs=(COMPLEX,)),
    op("fft_rfft2", x(4, 6), outputs=(COMPLEX,)),
    op("fft_rfftn", x(4, 6), outputs=(COMPLEX,)),
    op("stft", x(32), 8, kwargs={"return_complex": True}, outputs=(COMPLEX,)),
    op("stft.center", x(32), 8, kwargs={"return_complex": True}, outputs=(COMPLEX,)),
)

ROWS = (*FACTORS, *SOLVERS, *MEASURES, *FOURIER)
