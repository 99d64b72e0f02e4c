"""Where the bad value sits: gradients of every layout and dtype that a scaler meets, bad in one place or clean."""

from __future__ import annotations

import dataclasses
import enum

from amp_checks.core import Backend


class Layout(enum.StrEnum):
    """How a gradient lies in memory, or that there is none."""

    DENSE = "dense"
    SCALAR = "0-dim"
    EMPTY = "empty"
    TRANSPOSED = "transposed"
    STRIDED = "every other column"
    CHANNELS_LAST = "channels last"
    SPARSE = "sparse"
    DUPLICATES = "sparse, with rows that occur twice"
    EXPANDED = "expanded"
    NONE = "none"
    FROZEN = "none, on a parameter that requires none"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """One parameter's gradient; ``group`` is the parameter group it is in."""

    layout: Layout = Layout.DENSE
    dtype: str = "float32"
    group: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GradientCase:
    """The parameters of one optimizer, and where among them a bad value may sit.

    Attributes:
        gradients: one for each parameter.
        bad: number of the parameter whose gradient is bad.
        element: which of its elements (0, or -1 for the last).
        sums: instead of one bad element, two finite ones of the same place, whose sum overflows.
        refused: ``"ValueError: ..."`` where ``unscale_`` must refuse the clean gradients.
    """

    id: str
    gradients: tuple[Gradient, ...]
    bad: int = 0
    element: int = 0
    sums: bool = False
    refused: str = ""
    source: str = "torch.amp.GradScaler.step: inf and NaN gradients skip the step"
    behaviours: tuple[int, ...] = (17,)
    family: str = "scaler"
    full: bool = False

    def runs_on(self, _: Backend) -> bool:
        return True


_PLAIN = Gradient()
_LAYOUTS = (
    Layout.SCALAR,
    Layout.TRANSPOSED,
    Layout.STRIDED,
    Layout.CHANNELS_LAST,
    Layout.SPARSE,
    Layout.DUPLICATES,
)


def _around(gradient: Gradient) -> tuple[Gradient, ...]:
    """Something before and something behind, as in a model."""
    return (_PLAIN, gradient, Gradient(layout=Layout.EMPTY), Gradient(group=1))


ROWS: tuple[GradientCase, ...] = (
    *(
        GradientCase(
            id=f"bad-in-parameter-{bad}-{name}-element",
            gradients=(_PLAIN, _PLAIN, Gradient(group=1)),
            bad=bad,
            element=element,
        )
        for bad in (0, 1, 2)
        for name, element in (("first", 0), ("last", -1))
    ),
    *(
        GradientCase(
            id=f"bad-in-{layout.name.lower().replace('_', '-')}-gradient",
            gradients=_around(Gradient(layout=layout)),
            bad=1,
            element=-1,
            behaviours=(17, 18, 19) if layout in {Layout.SPARSE, Layout.DUPLICATES} else (17, 18),
        )
        for layout in _LAYOUTS
    ),
    *(
        GradientCase(
            id=f"bad-in-{dtype}-gradient",
            gradients=_around(Gradient(dtype=dtype)),
            bad=1,
            element=-1,
            source="observed on 2.13.0: bfloat16 and float64 gradients are unscaled as they are",
            behaviours=(16, 17),
        )
        for dtype in ("bfloat16", "float64")
    ),
    *(
        GradientCase(
            id=f"bad-in-gradient-{bad}-of-three-dtypes",
            gradients=(_PLAIN, Gradient(dtype="bfloat16"), Gradient(dtype="float64"), _PLAIN),
            bad=bad,
            behaviours=(16, 17),
        )
        for bad in (0, 1, 2)
    ),
    GradientCase(
        id="bad-in-sparse-bfloat16-gradient",
        gradients=_around(Gradient(layout=Layout.DUPLICATES, dtype="bfloat16")),
        bad=1,
        source="https://github.com/pytorch/pytorch/issues/35810",
        behaviours=(16, 19),
    ),
    GradientCase(
        id="bad-beside-none",
        gradients=(
            Gradient(layout=Layout.NONE),
            _PLAIN,
            Gradient(layout=Layout.FROZEN),
            Gradient(layout=Layout.NONE, group=1),
        ),
        bad=1,
        behaviours=(17, 18),
    ),
    GradientCase(
        id="bad-in-duplicates-that-sum-to-inf",
        gradients=_around(Gradient(layout=Layout.DUPLICATES)),
        bad=1,
        sums=True,
        source="torch.amp.GradScaler: the comment on coalescing in _unscale_grads_",
        behaviours=(19,),
    ),
    GradientCase(
        id="float16-gradient-refused",
        gradients=(_PLAIN, Gradient(dtype="float16")),
        refused="ValueError: Attempting to unscale FP16 gradients.",
        behaviours=(16,),
    ),
    GradientCase(
        id="sparse-float16-gradient-refused",
        gradients=(_PLAIN, Gradient(dtype="float16", layout=Layout.DUPLICATES)),
        refused="ValueError: Attempting to unscale FP16 gradients.",
        behaviours=(16, 19),
    ),
    GradientCase(
        id="complex-gradient-refused",
        gradients=(_PLAIN, Gradient(dtype="complex64")),
        refused='NotImplementedError: "_amp_foreach_non_finite_check_and_unscale_',
        source="observed on 2.13.0: the check has no kernel for complex numbers",
        behaviours=(16,),
    ),
    GradientCase(
        id="expanded-gradient-refused",
        gradients=(_PLAIN, Gradient(layout=Layout.EXPANDED)),
        refused="RuntimeError: unsupported operation: more than one element of the written-to tensor",
        source="observed on 2.13.0: memory that overlaps is not written to in place",
        behaviours=(18,),
    ),
)
