"""What an audit saw, module by module: ops and casts, how large the values were, and what was found there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from amp_checks.audit.finding import Diagnostic
from amp_checks.audit.measures import low_dtype
from amp_checks.audit.watching import magnitudes
from amp_checks.audit.watching.magnitudes import Magnitudes
from amp_checks.audit.watching.trace import Op, Trace
from amp_checks.torch_api.dtypes import LOW

OUTSIDE = "(outside any module)"


@dataclasses.dataclass(slots=True, kw_only=True)
class ModuleFacts:
    """One module, as the first iterations ran it; submodules are rows of their own.

    Attributes:
        path: as ``named_modules`` gives it, the class name for the model itself.
        ops, low_ops: floating ops of one forward, and those of them whose output is in 16 bits.
        casts: of those ops, how many only cast.
        activations: sizes of 16-bit outputs in forward.
        backward: sizes of 16-bit outputs in backward, under the loss scale.
        gradients: sizes that the gradients of the module's own parameters would have in 16 bits, unscaled.
        scaled: the same under the loss scale.
        findings: ids of the rules that found something there.
    """

    path: str
    ops: int = 0
    low_ops: int = 0
    casts: int = 0
    activations: Magnitudes | None = None
    backward: Magnitudes | None = None
    gradients: Magnitudes | None = None
    scaled: Magnitudes | None = None
    findings: tuple[str, ...] = ()


def by_module(trace: Trace, diagnostics: Iterable[Diagnostic], *, root: str) -> tuple[ModuleFacts, ...]:
    """A row for each module that ran, in the order in which they first ran; ``root`` names the model itself."""
    rows: dict[str, ModuleFacts] = {}

    def row(path: str | None) -> ModuleFacts:
        name = OUTSIDE if path is None else path or root
        return rows.setdefault(name, ModuleFacts(path=name))

    for op in trace.ops:
        if op.step == 0:
            _add_op(row(op.module), op)
    low, scale = low_dtype(trace), first_scale(trace)
    for name, gradient in trace.gradients.items():
        if low is None:
            break
        facts = row(name.rpartition(".")[0])
        facts.gradients = together(facts.gradients, magnitudes.of(gradient, low))
        facts.scaled = together(facts.scaled, magnitudes.of(gradient * scale, low))
    for one in diagnostics:
        if one.module is not None and one.follows_from is None:
            facts = row(one.module)
            facts.findings = tuple(dict.fromkeys((*facts.findings, one.rule)))
    return tuple(rows.values())


def first_scale(trace: Trace) -> float:
    """The loss scale of the step whose gradients were kept: the first that was not skipped; 1.0 without a scaler."""
    skipped = max(trace.first_real.values(), default=0)
    return [trace.first_scale, *trace.scales][: skipped + 1][-1] or 1.0 if trace.scaled else 1.0


def together(one: Magnitudes | None, other: Magnitudes | None) -> Magnitudes | None:
    """Both, or the one that is there; of two dtypes, the first."""
    if one is None or other is None:
        return one or other
    return one + other if one.dtype is other.dtype else one


def _add_op(facts: ModuleFacts, op: Op) -> None:
    if op.backward:
        facts.backward = together(facts.backward, op.magnitudes)
        return
    facts.ops += 1
    facts.low_ops += op.outputs[0] in LOW
    facts.casts += op.is_cast
    facts.activations = together(facts.activations, op.magnitudes)
