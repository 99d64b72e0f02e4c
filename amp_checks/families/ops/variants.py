"""Other ways to call the ops of the table: more dtypes, nested regions, ``dtype=``, ``out=``, in place, as
users write them.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch

from amp_checks.core import Backend, CastPolicy
from amp_checks.families.ops.rows import OpCase
from amp_checks.records import cast_policy
from amp_checks.torch_api import private


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A row of the table called in another way."""

    op: OpCase
    full: bool = True
    family: str = "ops"
    suffix: ClassVar[str] = ""

    @property
    def id(self) -> str:
        return f"{self.op.id}.{self.suffix}"

    def runs_on(self, backend: Backend) -> bool:
        return self.op.runs_on(backend)


class DtypesCase(Variant):
    """The op over every dtype plan: 64-bit, whole-number and complex inputs, and mixed ones."""

    suffix = "dtypes"


class NestingCase(Variant):
    """The op with autocast on, off inside on, and on inside off inside on."""

    suffix = "nesting"


class ExplicitDtypeCase(Variant):
    """The op with a ``dtype=`` of the user's."""

    suffix = "dtype"


class PromotionCase(Variant):
    """The op over pairs of dtypes, where its rule promotes."""

    suffix = "promotion"

    def runs_on(self, backend: Backend) -> bool:
        return self.op.runs_on(backend) and cast_policy.of(self.op.id, backend.device_type) is CastPolicy.PROMOTE


NOT_EMULATED = frozenset({"matmul.out"})
"""Forms that the emulation cannot run: emulated tensors have no memory of their own, so torch takes them to overlap."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UncastFormCase(Variant):
    """The ``out=`` or the in-place form of a listed op, which autocast does not cast; ``form`` is the overload."""

    form: str

    @property
    def id(self) -> str:
        return self.form

    def runs_on(self, backend: Backend) -> bool:
        if backend.emulated and self.form in NOT_EMULATED:
            return False
        listed = self.op.id in cast_policy.declared(backend.device_type)
        return listed and self.op.runs_on(backend) and cast_policy.exists(self.form)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpellingCase(Variant):
    """An op as users write it; ``path`` is an importable callable, called with ``args`` (the row's own where None)."""

    path: str
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.path

    def runs_on(self, backend: Backend) -> bool:
        listed = self.op.id in cast_policy.declared(backend.device_type)
        return listed and self.op.runs_on(backend)


def takes_dtype(row: OpCase) -> bool:
    """Whether the op has a ``dtype`` of its own to give (no row gives one)."""
    return _argument(row.id, "dtype") and not row.call


def promotes_somewhere(row: OpCase) -> bool:
    """Whether some device type of some recorded torch promotes the op."""
    tables = cast_policy.recorded().values()
    return any(rules.get(row.id) is CastPolicy.PROMOTE for table in tables for rules in table.rules.values())


def _overload(name: str) -> Any:
    base, _, suffix = name.partition(".")
    return getattr(getattr(torch.ops.aten, base, None), suffix or "default", None)


def _argument(name: str, argument: str) -> bool:
    found = _overload(name)
    return found is not None and argument in private.argument_names(found)


def uncast_forms(row: OpCase) -> tuple[str, ...]:
    """The ``out=`` and in-place overloads that take the row's own arguments, found among torch's overloads."""
    found = _overload(row.id)
    if found is None or row.call:
        return ()
    base = row.id.partition(".")[0]
    forms = []
    for name in (base, f"{base}_"):
        packet = getattr(torch.ops.aten, name, None)
        for suffix in packet.overloads() if packet is not None else ():
            taken = _signature(getattr(packet, suffix))
            out = [argument for argument in taken if argument[0] == "out"]
            if (name != base or out == [("out", "Tensor")]) and [a for a in taken if a not in out] == _signature(found):
                forms.append(name if suffix == "default" else f"{name}.{suffix}")
    return tuple(forms)


def _signature(found: Any) -> list[tuple[str, str]]:
    return list(zip(private.argument_names(found), private.argument_types(found), strict=True))
