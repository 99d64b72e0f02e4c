"""Where a rounding error grew out of proportion: the first iteration's values under AMP against those in float32.

Both runs are recorded op by op, casts apart, and laid side by side. Each op's error is set against that of what it was
given: the first that makes much more of it is the amplifier, and the 16-bit op before it is what rounded too early.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from amp_checks import _torch_private as private
from amp_checks.audit.ops import LOW
from amp_checks.audit.places import line, tracked_modules, user_frame
from amp_checks.audit.trace import Kind

if TYPE_CHECKING:
    from amp_checks.audit.watch import Watch

SAMPLE = 4096
"""Elements of an output that are kept."""
GROWTH = 64.0
"""An op is an amplifier when its error is this many times that of its inputs, or of the dtype where that is larger."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Amplified:
    """Where precision was lost.

    Attributes:
        op, module, where: the 16-bit op that rounded.
        by, by_where: the op that made a large error of it, where that is another.
        error: relative error after it.
    """

    op: str
    module: str | None
    where: str | None
    by: str | None
    by_where: str | None
    error: float

    def describe(self) -> str:
        text = f"{self.op} rounds to 16 bits"
        if self.by is not None:
            text += f", and {self.by} at {self.by_where} makes a relative error of {self.error:.2g} of it"
        return text


@dataclasses.dataclass(slots=True)
class _Value:
    op: str
    module: str | None
    where: str | None
    dtype: torch.dtype
    sample: Tensor
    parents: list[int]
    cast: bool


class ValueMode(TorchDispatchMode):
    """Records the forward of the first iteration."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: list[_Value] = []
        self._watch = watch
        self._made: dict[int, tuple[int, Tensor]] = {}
        self._modules: list[str] = []
        self._tracking: Any = None

    def __enter__(self) -> Self:
        self._tracking = tracked_modules(self._watch.training.named_modules(), self._modules)
        self._tracking.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._tracking.__exit__(*exception)
        self._made.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        watch = self._watch
        if watch.trace.events and any(event.kind is Kind.BACKWARD for event in watch.trace.events):
            return out  # what follows the first backward has no part in the first loss
        if watch.step != 0 or watch.backward_depth or watch.ops.quiet or private.is_aliasing(func):
            return out
        with private.no_function_modes():
            self._record(func, args, out)
        return out

    def _record(self, func: Any, args: Any, out: Any) -> None:
        if "empty" in func.name():
            return  # what lies in new memory says nothing
        first = out[0] if isinstance(out, tuple | list) and out else out
        if not isinstance(first, Tensor) or not first.is_floating_point() or first.layout is not torch.strided:
            return
        inputs = [value for value in args if isinstance(value, Tensor)]
        for value in args:
            if isinstance(value, list | tuple):
                inputs += [item for item in value if isinstance(item, Tensor)]
        parents = [self._made[key][0] for value in inputs if (key := value.untyped_storage().data_ptr()) in self._made]
        flat = first.detach().reshape(-1)
        stride = max(1, flat.numel() // SAMPLE)
        self.values.append(
            _Value(
                op=func.name(),
                module=self._modules[-1] if self._modules else None,
                where=line(user_frame(3)),
                dtype=first.dtype,
                sample=flat[::stride][:SAMPLE].double().clone(),
                parents=parents,
                cast=func.name() == "aten::_to_copy",
            )
        )
        self._made[first.untyped_storage().data_ptr()] = (len(self.values) - 1, first)


def find(amp: list[_Value], fp32: list[_Value]) -> Amplified | None:
    """The first amplifier of errors in the AMP run, or None."""
    pairs = _aligned(amp, fp32)
    errors: dict[int, float] = {}
    for place, value in enumerate(amp):
        before = max((errors.get(parent, 0.0) for parent in value.parents), default=0.0)
        other = pairs.get(place)
        if other is None:
            errors[place] = before
            continue
        error = _relative(value.sample, other.sample)
        errors[place] = error
        floor = max(before, torch.finfo(value.dtype if value.dtype in LOW else torch.float16).eps / 4)
        if error > GROWTH * floor and error > 0.02:
            return _amplified(amp, place, error)
    return None


def _aligned(amp: list[_Value], fp32: list[_Value]) -> dict[int, _Value]:
    ours = [place for place, value in enumerate(amp) if not value.cast]
    theirs = [value for value in fp32 if not value.cast]
    matcher = difflib.SequenceMatcher(
        None, [(amp[place].op, amp[place].where) for place in ours], [(v.op, v.where) for v in theirs], autojunk=False
    )
    return {
        ours[block.a + offset]: theirs[block.b + offset]
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
        if amp[ours[block.a + offset]].sample.shape == theirs[block.b + offset].sample.shape
    }


def _relative(actual: Tensor, expected: Tensor) -> float:
    finite = actual.isfinite() & expected.isfinite()
    size = expected[finite].norm().item()
    return (actual[finite] - expected[finite]).norm().item() / size if size else 0.0


def _amplified(amp: list[_Value], place: int, error: float) -> Amplified:
    amplifier = amp[place]
    rounding = place
    seen = [place]
    while seen:
        now = seen.pop()
        if amp[now].dtype in LOW and not amp[now].cast and (now != place or not amp[now].parents):
            rounding = now
            break
        seen += amp[now].parents
    value = amp[rounding]
    return Amplified(
        op=value.op,
        module=value.module,
        where=value.where,
        by=amplifier.op if rounding != place else None,
        by_where=amplifier.where if rounding != place else None,
        error=error,
    )
