"""Linear algebra that does not run in 16 bits. Add an op as one row."""

from __future__ import annotations

from typing import Any

import torch

from amp_checks.families.fp32_only.rows import LOWER, REGULAR, RIGHT, SPD, SPREAD, VECTOR, Fp32OnlyCase, Input
from amp_checks.torch_api.numerics import seeded

linalg = torch.linalg

_SINGULAR = (Input(shape=(8, 3)), Input(shape=(8, 3)))
_COLUMNS = (Input(shape=(8, 4)), Input(shape=(1, 4), kind="unit"))
"""A tall matrix and one factor per column, as Householder reflectors have."""


def _pivots(matrix: torch.Tensor) -> torch.Tensor:
    """Pivots that exchange no rows."""
    return torch.arange(1, matrix.shape[-1] + 1, dtype=torch.int32, device=matrix.device)


def _svd(u: torch.Tensor, s: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Singular values, and the squares of the vectors, whose sign is free."""
    return s, u * u, v * v


def _outer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b.mT``, singular, by no op that autocast lowers."""
    return (a[:, None, :] * b[None, :, :]).sum(-1)


def _eigh(values: torch.Tensor, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return values, vectors * vectors


def _moduli(values: torch.Tensor) -> torch.Tensor:
    return values.abs().sort().values


def _newer(name: str) -> Any:
    """An op that not every supported torch has: looked up when it is called."""

    def op(matrix: torch.Tensor) -> Any:
        return getattr(linalg, name)(matrix)

    return op


def _lowrank(op: Any) -> Any:
    """Both draw a random start; asked for the whole rank, they give the same whatever it is."""

    def values(x: torch.Tensor) -> torch.Tensor:
        with seeded("a random start"):
            found: torch.Tensor = op(x, q=x.shape[-1])[1]
        return found

    return values


def _sampled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    eye = torch.eye(a.shape[0], dtype=a.dtype, device=a.device).to_sparse_csr()
    values: torch.Tensor = torch.sparse.sampled_addmm(eye, a, b).values()
    return values


ROWS: tuple[Fp32OnlyCase, ...] = (
    Fp32OnlyCase(declared="linalg.inv", op=linalg.inv, inputs=REGULAR),
    Fp32OnlyCase(declared="linalg.inv_ex", op=lambda a: linalg.inv_ex(a).inverse, inputs=REGULAR),
    Fp32OnlyCase(declared="linalg.solve", op=linalg.solve, inputs=REGULAR + RIGHT),
    Fp32OnlyCase(declared="linalg.solve_ex", op=lambda a, b: linalg.solve_ex(a, b).result, inputs=REGULAR + RIGHT),
    Fp32OnlyCase(
        declared="linalg.solve_triangular",
        op=lambda a, b: linalg.solve_triangular(a, b, upper=False),
        inputs=LOWER + RIGHT,
    ),
    Fp32OnlyCase(
        declared="triangular_solve",
        op=lambda b, a: torch.triangular_solve(b, a, upper=False).solution,
        inputs=RIGHT + LOWER,
    ),
    Fp32OnlyCase(declared="cholesky", op=torch.cholesky, inputs=SPD),
    Fp32OnlyCase(declared="cholesky_inverse", op=torch.cholesky_inverse, inputs=LOWER),
    Fp32OnlyCase(declared="cholesky_solve", op=torch.cholesky_solve, inputs=RIGHT + LOWER),
    Fp32OnlyCase(declared="linalg.cholesky", op=linalg.cholesky, inputs=SPD),
    Fp32OnlyCase(declared="linalg.cholesky_ex", op=lambda a: linalg.cholesky_ex(a).L, inputs=SPD),
    Fp32OnlyCase(declared="qr", op=torch.qr, inputs=REGULAR),
    Fp32OnlyCase(declared="linalg.qr", op=linalg.qr, inputs=REGULAR),
    Fp32OnlyCase(declared="geqrf", op=torch.geqrf, inputs=REGULAR, differentiable=False),
    Fp32OnlyCase(
        declared="ormqr", op=lambda a, tau, b: torch.ormqr(a, tau[0], b), inputs=(*_COLUMNS, Input(shape=(8, 3)))
    ),
    Fp32OnlyCase(
        declared="linalg.householder_product", op=lambda a, tau: linalg.householder_product(a, tau[0]), inputs=_COLUMNS
    ),
    Fp32OnlyCase(declared="svd", op=lambda a: _svd(*torch.svd(a)), inputs=SPREAD),
    Fp32OnlyCase(declared="linalg.svd", op=lambda a: _svd(*linalg.svd(a, full_matrices=False)), inputs=SPREAD),
    Fp32OnlyCase(declared="linalg.svdvals", op=linalg.svdvals, inputs=REGULAR),
    Fp32OnlyCase(declared="svd_lowrank", op=_lowrank(torch.svd_lowrank), inputs=SPREAD),
    # Some columns of it: centred, the whole is singular; normal numbers may give two values next to each other.
    Fp32OnlyCase(declared="pca_lowrank", op=lambda a: _lowrank(torch.pca_lowrank)(a[:, 2:6]), inputs=SPREAD),
    Fp32OnlyCase(declared="linalg.eig", op=lambda a: _moduli(linalg.eig(a).eigenvalues), inputs=SPREAD),
    Fp32OnlyCase(declared="linalg.eigvals", op=lambda a: _moduli(linalg.eigvals(a)), inputs=SPREAD),
    Fp32OnlyCase(declared="linalg.eigh", op=lambda a: _eigh(*linalg.eigh(a)), inputs=SPREAD),
    Fp32OnlyCase(declared="linalg.eigvalsh", op=linalg.eigvalsh, inputs=SPD),
    Fp32OnlyCase(declared="linalg.det", op=linalg.det, inputs=REGULAR),
    Fp32OnlyCase(declared="linalg.slogdet", op=linalg.slogdet, inputs=REGULAR),
    # REGULAR: its determinant is far from 1, whose logarithm of 0 has no relative error to speak of.
    Fp32OnlyCase(declared="logdet", op=torch.logdet, inputs=REGULAR),
    Fp32OnlyCase(declared="lu", op=lambda a: a.lu()[0], inputs=REGULAR),
    Fp32OnlyCase(declared="linalg.lu", op=lambda a: linalg.lu(a)[1:], inputs=REGULAR),
    Fp32OnlyCase(declared="linalg.lu_factor", op=lambda a: linalg.lu_factor(a).LU, inputs=REGULAR),
    Fp32OnlyCase(declared="linalg.lu_factor_ex", op=lambda a: linalg.lu_factor_ex(a).LU, inputs=REGULAR),
    Fp32OnlyCase(declared="lu_unpack", op=lambda a: torch.lu_unpack(a, _pivots(a))[1:], inputs=REGULAR),
    Fp32OnlyCase(declared="lu_solve", op=lambda b, a: torch.lu_solve(b, a, _pivots(a)), inputs=RIGHT + REGULAR),
    Fp32OnlyCase(declared="linalg.lu_solve", op=lambda a, b: linalg.lu_solve(a, _pivots(a), b), inputs=REGULAR + RIGHT),
    Fp32OnlyCase(declared="linalg.ldl_factor", op=lambda a: linalg.ldl_factor(a).LD, inputs=SPD, differentiable=False),
    Fp32OnlyCase(
        declared="linalg.ldl_factor_ex", op=lambda a: linalg.ldl_factor_ex(a).LD, inputs=SPD, differentiable=False
    ),
    Fp32OnlyCase(
        declared="linalg.ldl_solve",
        op=lambda a, b: linalg.ldl_solve(a, _pivots(a), b),
        inputs=LOWER + RIGHT,
        differentiable=False,
    ),
    # gelsy, the CPU's default driver, gives other bits from call to call; gels does not, and is CUDA's.
    Fp32OnlyCase(
        declared="linalg.lstsq", op=lambda a, b: linalg.lstsq(a, b, driver="gels").solution, inputs=REGULAR + RIGHT
    ),
    Fp32OnlyCase(
        declared="linalg.lstsq.grad_oriented",
        op=lambda a, b: linalg.lstsq(a, b, driver="gels").solution,
        inputs=(Input(shape=(8, 4)), Input(shape=(8, 3))),
    ),
    Fp32OnlyCase(declared="linalg.pinv", op=linalg.pinv, inputs=REGULAR),
    Fp32OnlyCase(declared="linalg.pinv.hermitian", op=lambda a: linalg.pinv(a + a.mT, hermitian=True), inputs=SPREAD),
    Fp32OnlyCase(declared="linalg.pinv.singular", op=lambda a, b: linalg.pinv(_outer(a, b)), inputs=_SINGULAR),
    Fp32OnlyCase(declared="pinverse", op=torch.pinverse, inputs=REGULAR),
    Fp32OnlyCase(declared="linalg.matrix_power", op=lambda a: linalg.matrix_power(a, -2), inputs=REGULAR),
    Fp32OnlyCase(declared="linalg.matrix_rank", op=linalg.matrix_rank, inputs=REGULAR, differentiable=False),
    Fp32OnlyCase(
        declared="linalg.matrix_rank.hermitian",
        op=lambda a: linalg.matrix_rank(a, hermitian=True),
        inputs=SPREAD,
        differentiable=False,
    ),
    Fp32OnlyCase(declared="linalg.cond", op=linalg.cond, inputs=SPREAD),
    Fp32OnlyCase(declared="linalg.norm", op=lambda a: linalg.norm(a, ord=2), inputs=SPREAD),
    Fp32OnlyCase(declared="linalg.norm.subgradients_at_zero", op=lambda a: linalg.norm(a, ord="nuc"), inputs=SPREAD),
    Fp32OnlyCase(declared="linalg.matrix_norm", op=lambda a: linalg.matrix_norm(a, ord=-2), inputs=SPREAD),
    Fp32OnlyCase(declared="norm.nuc", op=lambda a: torch.norm(a, p="nuc"), inputs=SPREAD),
    Fp32OnlyCase(declared="linalg.tensorinv", op=lambda a: linalg.tensorinv(a.reshape(2, 4, 8), ind=2), inputs=REGULAR),
    Fp32OnlyCase(
        declared="linalg.tensorsolve",
        op=lambda a, b: linalg.tensorsolve(a.reshape(8, 2, 4), b[:, 0]),
        inputs=REGULAR + RIGHT,
    ),
    Fp32OnlyCase(declared="trace", op=torch.trace, inputs=REGULAR),
    Fp32OnlyCase(declared="linalg.vander", op=lambda x: linalg.vander(x, N=4), inputs=VECTOR),
    Fp32OnlyCase(declared="linalg.polar", op=_newer("polar"), inputs=REGULAR),
    Fp32OnlyCase(declared="linalg.matrix_sqrth", op=_newer("matrix_sqrth"), inputs=SPREAD),
    Fp32OnlyCase(declared="sparse.sampled_addmm", op=_sampled, inputs=VECTOR + VECTOR),
)
