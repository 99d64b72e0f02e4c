"""Where a rounding error grew out of proportion: the first iteration's values under AMP against those in float32.

Both runs are recorded op by op, casts apart, and laid side by side. Each op's error is set against that of what it was
given: the first that makes much more of it is the amplifier, and the 16-bit op before it is what rounded too early.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from typing import Any

import torch
from torch import Tensor

from amp_checks.audit.places import line, user_frame
from amp_checks.audit.probes.recorder import Recorder
from amp_checks.audit.watching import readable
from amp_checks.audit.watching.op_facts import MOVES, is_of_angle, tensors_of
from amp_checks.audit.watching.state import RunState
from amp_checks.torch_api import private
from amp_checks.torch_api.dtypes import LOW

SAMPLE = 4096
"""Elements of an output that are kept."""
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
GROWTH = 64.0
"""An op is an amplifier when its error is this many times that of its inputs, or of the dtype where that is larger."""
_ANGLE_ERROR = 32.0
"""Error in eps from which the sine of an angle is wrong: 0.25 in bfloat16, 0.03 in float16."""
_LOST_ANGLES = 0.01
"""Share of wrong ones from which angles are lost: of 1024 rotary positions 4 % in float16, 7 % in bfloat16."""


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
class Value:
    """What one op made: its first output, or a sample of that, in float64; ``numbers`` are constants it was given."""

    op: str
    module: str | None
    where: str | None
    dtype: torch.dtype
    sample: Tensor
    parents: list[int]
    numbers: tuple[float, ...]
    cast: bool
    of_angle: bool


class ValueRecorder(Recorder[list[Value]]):
    """Records what forward makes, before the first backward."""

    def __init__(self, state: RunState, step: int) -> None:
        super().__init__(state, step)
        self._values: list[Value] = []
        self._made: dict[int, tuple[int, Tensor]] = {}
        self._over = False

    def result(self) -> list[Value]:
        """In the order in which they were made."""
        self._made.clear()
        return self._values

    def backward_starts(self, roots: Any) -> None:
        """What follows the first backward has no part in the first loss."""
        del roots
        self._over = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        run = self._run
        if self._over or run.step != self._step or run.backward_depth or run.quiet or private.is_aliasing(func):
            return out
        with private.no_function_modes():
            self._record(func, args, out)
        return out

    def _record(self, func: Any, args: Any, out: Any) -> None:
        if "empty" in func.name():
            return  # what lies in new memory says nothing
        first = out[0] if isinstance(out, tuple | list) and out else out
        if not isinstance(first, Tensor) or first.layout is not torch.strided or readable.values(first) is None:
            return
        of_angle = is_of_angle(_base(func.name()), first)
        if first.is_complex():
            first = torch.view_as_real(first.detach())
        if not first.is_floating_point():
            return
        storages = [value.untyped_storage().data_ptr() for value in tensors_of(args) if value.layout is torch.strided]
        self._values.append(
            Value(
                op=func.name(),
                module=self._run.module,
                where=line(user_frame()),
                dtype=first.dtype,
                sample=sample(first.detach().reshape(-1)).double(),
                parents=[self._made[key][0] for key in storages if key in self._made],
                numbers=tuple(number for value in args if (number := self._number(value)) is not None),
                cast=func.name() == "aten::_to_copy",
                of_angle=of_angle,
            )
        )
        self._made[first.untyped_storage().data_ptr()] = (len(self._values) - 1, first)

    def _number(self, value: Any) -> float | None:
        if isinstance(value, int | float):
            return float(value)
        # Python numbers arrive as tensors of no dimension, always on the CPU.
        if (
            not isinstance(value, Tensor)
            or value.dim()
            or value.device.type != "cpu"
            or value.is_complex()
            or (value.layout is not torch.strided)
        ):
            return None
        return float(value.item()) if value.untyped_storage().data_ptr() not in self._made else None


def sample(flat: Tensor) -> Tensor:
    """Up to `SAMPLE` elements of one dimension, in steps of the golden ratio: none may fall in with a matrix's rows."""
    count = flat.numel()
    if count <= SAMPLE:
        return flat.clone()
    return flat[(torch.arange(SAMPLE, dtype=torch.float64) * (_GOLDEN * count) % count).long().to(flat.device)]


def find(amp: list[Value], fp32: list[Value]) -> Amplified | None:
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
        if len(value.numbers) == len(other.numbers) and value.numbers != other.numbers:
            continue  # another constant in another dtype, as torch.finfo(x.dtype).min, is no error
        floor = max(before, torch.finfo(value.dtype if value.dtype in LOW else torch.float16).eps / 4)
        if error > GROWTH * floor and error > 0.02:
            return _amplified(amp, place, error)
    return None


def wrong_angles(amp: list[Value], exact: list[Value], dtype: torch.dtype) -> Amplified | None:
    """The first sine or cosine, of the AMP run, of angles that rounding to ``dtype`` has lost, or None.

    ``exact`` are the values in float64, or in float32. Angles so large that float32 loses them are no fault of AMP;
    those that overflow float16 are among them, and are reported as infinite.
    """
    bound = _ANGLE_ERROR * torch.finfo(dtype).eps
    for place, other in _aligned(amp, exact).items():
        value = amp[place]
        if not value.of_angle or not other.sample.numel():
            continue
        angles = [exact[parent].sample for parent in other.parents]
        largest = max((sample.abs().max().item() for sample in angles if sample.numel()), default=0.0)
        if not largest * torch.finfo(torch.float32).eps < bound / 4:
            continue
        error = (value.sample - other.sample).abs()
        if (error > bound).double().mean().item() >= _LOST_ANGLES:
            return _amplified(amp, place, error.max().item())
    return None


def _base(op: str) -> str:
    return op.partition(".")[0]


def _aligned(amp: list[Value], fp32: list[Value]) -> dict[int, Value]:
    left = [place for place, value in enumerate(amp) if not value.cast]
    right = [value for value in fp32 if not value.cast]
    matcher = difflib.SequenceMatcher(
        None, [(amp[place].op, amp[place].where) for place in left], [(v.op, v.where) for v in right], autojunk=False
    )
    pairs = [
        (left[block.a + offset], right[block.b + offset])
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    ]
    return {place: other for place, other in pairs if amp[place].sample.shape == other.sample.shape}


def _relative(actual: Tensor, expected: Tensor) -> float:
    finite = actual.isfinite() & expected.isfinite()
    size = expected[finite].norm().item()
    return (actual[finite] - expected[finite]).norm().item() / size if size else 0.0


def _amplified(amp: list[Value], place: int, error: float) -> Amplified:
    """That op, and the last 16-bit one before it that rounded; or where none did, an explicit cast."""
    amplifier = amp[place]
    rounding, explicit_cast = place, None
    seen = [place]
    while seen:
        now = seen.pop()
        value = amp[now]
        rounds = value.dtype in LOW and not value.cast and _base(value.op) not in MOVES
        if rounds and (now != place or not value.parents):
            rounding = now
            break
        if value.cast and value.dtype in LOW and explicit_cast is None:
            explicit_cast = now
        seen += value.parents
    if rounding == place and amplifier.dtype not in LOW and explicit_cast is not None:
        rounding = explicit_cast
    value, other = amp[rounding], rounding != place
    return Amplified(
        op=value.op,
        module=value.module,
        where=value.where,
        by=amplifier.op if other else None,
        by_where=amplifier.where if other else None,
        error=error,
    )
