"""Which ops a device runs in 16 bits: what was seen, what torch's own op database declares, and what autocast does.

``fixtures/low_precision_support/torch-<version>.json`` holds, for one torch, the ops that are worth a word: those that
did not simply run in 16 bits as declared. A device that was there was run; of the others there is only the declaration.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amp_checks.core import LOW_DTYPES, SuiteError, UsageError
from amp_checks.records import fixtures

FOLDER = "low_precision_support"


class Kind(enum.StrEnum):
    """What became of a call in a low dtype, the worst first."""

    RAISES = "raises"
    WRONG = "silently wrong"
    FLOAT32 = "computes in float32"
    SUPPORTS = "supports"


class Meets(enum.StrEnum):
    """What an autocast region does with an op whose input is in the low dtype already."""

    RULE = "its own FP32 rule"
    ERROR = "an error"
    PASSES = "a silent pass"
    UNSEEN = "not seen"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an op's samples: the worst kind, how many ``of`` how many showed it, and what the first said."""

    kind: Kind
    count: int
    of: int
    why: str = ""

    def __str__(self) -> str:
        return str(self.kind) if self.count == self.of else f"{self.kind} ({self.count} of {self.of})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One op of torch's database in one low dtype on one device.

    Attributes:
        op: its name there, with the variant: ``linalg.pinv.singular``.
        forward: what became of the call; None: it was not run.
        backward: the same of its gradient; None: not run, or there is none in float32 either.
        declared_forward: whether the database says that the device runs it.
        declared_backward: the same of its gradient; None: it has none in float32 either.
        meets: what an autocast region makes of a low-dtype input.
    """

    op: str
    forward: Outcome | None
    backward: Outcome | None
    declared_forward: bool
    declared_backward: bool | None
    meets: Meets

    @property
    def verified(self) -> bool:
        """Whether it was run, and not only declared."""
        return self.forward is not None

    @property
    def lacks(self) -> str:
        """``forward`` or ``backward``, where that raises (where it was not run: is declared to); else empty."""
        if self.forward is None:
            forward, backward = not self.declared_forward, self.declared_backward is False
        else:
            forward = self.forward.kind is Kind.RAISES
            backward = self.backward is not None and self.backward.kind is Kind.RAISES
        return "forward" if forward else "backward" if backward else ""

    @property
    def differs(self) -> bool:
        """Whether it was run, and does not do what is declared."""
        if self.forward is None:
            return False
        backward = self.backward is not None and (self.backward.kind is not Kind.RAISES) != self.declared_backward
        return (self.forward.kind is not Kind.RAISES) != self.declared_forward or (self.declared_forward and backward)

    @property
    def notable(self) -> bool:
        """Whether there is anything to say but that it is declared to run, and does."""
        outcomes = [outcome for outcome in (self.forward, self.backward) if outcome is not None]
        declared = self.declared_forward and self.declared_backward is not False
        return not declared or any(outcome.kind is not Kind.SUPPORTS for outcome in outcomes)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One device under one torch.

    Attributes:
        torch: its version.
        machine: what it was run on, as `machine` says it.
        ran: whether the device was there; else everything is a declaration.
        looked_at: how many ops were.
        ops: low dtype -> name -> what was seen, notable ops only.
    """

    torch: str
    machine: str
    ran: bool
    looked_at: int
    ops: Mapping[str, Mapping[str, Seen]]


def to_json(seen: Seen) -> dict[str, Any]:
    """As the record holds it."""
    plain = dataclasses.asdict(seen)
    del plain["op"]
    return plain


def from_json(op: str, plain: Mapping[str, Any]) -> Seen:
    """The other way."""
    outcomes = {
        half: None if plain[half] is None else Outcome(**{**plain[half], "kind": Kind(plain[half]["kind"])})
        for half in ("forward", "backward")
    }
    return Seen(**{**plain, **outcomes, "meets": Meets(plain["meets"]), "op": op})


def ops_from_json(plain: Mapping[str, Any]) -> dict[str, dict[str, Seen]]:
    """Low dtype -> name -> what was seen, as a record or a sweep holds it."""
    return {dtype: {op: from_json(op, seen) for op, seen in plain[dtype].items()} for dtype in LOW_DTYPES}


def load(path: Path) -> dict[str, Found]:
    """Read a record: device type -> what was found.

    Raises:
        SuiteError: it cannot be read, or is malformed; names the file and what is wrong.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {
            device: Found(
                torch=document["torch"],
                machine=document["machine"],
                ran=found["ran"],
                looked_at=found["looked_at"],
                ops=ops_from_json(found["ops"]),
            )
            for device, found in document["devices"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{path} cannot be read as a record of low-precision support: {type(error).__name__}: {error}"
        raise SuiteError(message) from error


def machine() -> str:
    """What a record says of the machine: architecture and the CPU capability that torch's kernels use."""
    import torch

    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


@functools.cache
def recorded() -> dict[str, dict[str, Found]]:
    """Every record that ships, by torch version, oldest first."""
    return {version: load(path) for version, path in fixtures.of_versions(FOLDER).items()}


@functools.cache
def record_for(version: str, device_type: str) -> Found:
    """The record of a torch version on a device: its own, else the newest one before it, else the oldest.

    Raises:
        UsageError: nothing was recorded for the device type.
    """
    having = {known: found[device_type] for known, found in recorded().items() if device_type in found}
    if not having:
        message = f"there is no record of what {device_type!r} runs in 16 bits; there are records of "
        raise UsageError(message + ", ".join(sorted(devices())))
    return fixtures.nearest(version, having)


def here(op: str, device_type: str, dtype: str) -> Seen | None:
    """What is recorded of an op for the torch that runs; None where it simply runs, or the torch has no such op."""
    import torch

    return record_for(torch.__version__, device_type).ops[dtype].get(op)


@functools.cache
def devices() -> frozenset[str]:
    """The device types of which there is a record."""
    return frozenset(device for found in recorded().values() for device in found)
