"""Special functions that do not run in 16 bits. Add an op as one row."""

from __future__ import annotations

import torch

from amp_checks.families.fp32_only.rows import POSITIVE, UNIT, VECTOR, Fp32OnlyCase, Input

special = torch.special

_POLYNOMIALS = (
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w"
).split()

_BESSEL = (
    "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 "
    "modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1 spherical_bessel_j0"
).split()


def _polynomial(name: str) -> Fp32OnlyCase:
    """A polynomial of the third degree."""
    op = getattr(special, name)
    return Fp32OnlyCase(declared=f"special.{name}", op=lambda x: op(x, 3), inputs=UNIT, differentiable=False)


ROWS: tuple[Fp32OnlyCase, ...] = (
    # e^(x^2) of a normal number passes 65504 now and then, and so does its gradient.
    Fp32OnlyCase(declared="special.erfcx", op=special.erfcx, inputs=POSITIVE),
    Fp32OnlyCase(declared="special.ndtri", op=special.ndtri, inputs=UNIT),
    Fp32OnlyCase(declared="special.log_ndtr", op=special.log_ndtr, inputs=VECTOR),
    Fp32OnlyCase(
        declared="special.zeta", op=lambda x: special.zeta(x + 1.0, 2.0), inputs=POSITIVE, differentiable=False
    ),
    # Their forward runs in 16 bits; their backward does not.
    Fp32OnlyCase(declared="special.i1", op=special.i1, inputs=VECTOR),
    Fp32OnlyCase(declared="special.i1e", op=special.i1e, inputs=VECTOR),
    *(
        Fp32OnlyCase(declared=f"special.{name}", op=getattr(special, name), inputs=POSITIVE, differentiable=False)
        for name in _BESSEL
    ),
    *(_polynomial(name) for name in _POLYNOMIALS),
    Fp32OnlyCase(declared="igamma", op=lambda x: torch.igamma(torch.full_like(x, 1.5), x), inputs=POSITIVE),
    Fp32OnlyCase(declared="igammac", op=lambda x: torch.igammac(torch.full_like(x, 1.5), x), inputs=POSITIVE),
    Fp32OnlyCase(declared="angle", op=torch.angle, inputs=VECTOR),
    # There are complex numbers of two halves, and none of two bfloat16.
    Fp32OnlyCase(declared="complex", op=torch.complex, inputs=VECTOR + VECTOR),
    Fp32OnlyCase(declared="view_as_complex", op=torch.view_as_complex, inputs=(Input(shape=(4, 4, 2)),)),
    Fp32OnlyCase(declared="polar", op=torch.polar, inputs=(Input(shape=(8, 8), kind="positive"), Input(shape=(8, 8)))),
)
