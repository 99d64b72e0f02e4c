"""What was counted of one iteration, as plain values: ops with FLOPs, bytes, dtypes and places, and what is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """Calls of one op that agree in all of this.

    Attributes:
        name: ``mm``, without namespace and overload.
        phase: ``forward``, ``backward`` or ``optimizer``.
        module, where: of the forward op, as the audit gives them; ``where`` is file and line.
        inputs: dtypes of the floating tensors it takes, without ``torch.``.
        output: dtype of the first floating tensor it gives; "" where there is none.
        flops: of one call, as `amp_checks.worth.formulas` counts them; nonzero for products alone.
        bytes: of one call: of all tensors it reads and writes, each once.
        float32_bytes: those of them in float32; of float64 also.
        odd: a leading dimension of a product that is no multiple of 8, or None.
        cast: what cast it is: "" none, ``program`` (written in the program), ``autocast``.
        of_weight: whether it casts a parameter.
        region: ``enabled``, ``disabled``, or ``none``: the autocast region around it, or around its forward.
        custom: whether a custom autograd function ran it.
        island: where the program cast to float32 what it computes in, as ``(module, where)``; None where it did not.
        returns: of an island's cast: whether nothing is done with what it gives but to cast it back.
    """

    name: str
    phase: str
    module: str | None
    where: str | None
    inputs: tuple[str, ...]
    output: str
    flops: int
    bytes: int
    float32_bytes: int
    odd: int | None = None
    cast: str = ""
    of_weight: bool = False
    region: str = "none"
    custom: bool = False
    island: tuple[str | None, str | None] | None = None
    returns: bool = False

    @property
    def dtype(self) -> str:
        """The widest dtype among its inputs: that of its arithmetic; of a product that of its first operand."""
        known = self.inputs or (self.output,)
        if self.flops:  # attention takes sums in float32 besides
            return known[0]
        for name in ("float64", "float32"):
            if name in known:
                return name
        return known[0]

    @property
    def low(self) -> bool:
        """Whether it computes in 16 bits."""
        return self.dtype in ("float16", "bfloat16")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """One iteration.

    Attributes:
        ops: each with how many calls there were.
        saved: bytes that forward keeps for backward, by dtype, each storage once, without parameters, buffers and
            copies of these; ``saved_copies``: the bytes of those copies that are kept.
        weight_copies: bytes of 16-bit copies of parameters, each parameter once.
        parameters, gradients, optimizer_state: bytes that AMP does not shrink.
        loading: seconds in which the program waited for its DataLoader; ``loads_at``: its line.
        seconds: of the iteration, under the counter.
        tf32: whether float32 products may use TF32.
        failed: what the iteration raised, or None.
    """

    ops: tuple[tuple[Op, int], ...] = ()
    saved: dict[str, int] = dataclasses.field(default_factory=dict)
    saved_copies: int = 0
    weight_copies: int = 0
    parameters: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    loading: float = 0.0
    loads_at: str | None = None
    seconds: float = 0.0
    tf32: bool = False
    failed: str | None = None

    @property
    def flops(self) -> int:
        """Of all products."""
        return sum(op.flops * calls for op, calls in self.ops)

    @property
    def low_flops(self) -> int:
        """Of the products in 16 bits."""
        return sum(op.flops * calls for op, calls in self.ops if op.low)

    @property
    def bytes(self) -> int:
        """Read and written, over all ops."""
        return sum(op.bytes * calls for op, calls in self.ops)

    def casts(self, kind: str | None = None) -> tuple[int, int]:
        """How many casts there were, and the bytes that they read and wrote; of a kind, or of all."""
        return _sum(pair for pair in self.ops if pair[0].cast and kind in (None, pair[0].cast))

    @property
    def saved_bytes(self) -> int:
        """Kept for backward, of all dtypes."""
        return sum(self.saved.values())

    def by_name(self) -> dict[str, tuple[int, int, int]]:
        """Op -> calls, FLOPs, bytes; the most bytes first."""
        found: dict[str, tuple[int, int, int]] = {}
        for op, calls in self.ops:
            before = found.get(op.name, (0, 0, 0))
            found[op.name] = before[0] + calls, before[1] + op.flops * calls, before[2] + op.bytes * calls
        return dict(sorted(found.items(), key=lambda item: -item[1][2]))


def _sum(pairs: Iterable[tuple[Op, int]]) -> tuple[int, int]:
    listed = list(pairs)
    return sum(calls for _, calls in listed), sum(op.bytes * calls for op, calls in listed)
