"""What AMP is worth for a program: two counts, the expected gain, its reasons; as text and plain values."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from amp_checks.audit.case import AuditCase
from amp_checks.audit.runs.disabled import AutocastOff, ScalerOff
from amp_checks.audit.runs.dtype import Compute
from amp_checks.audit.runs.plan import Runs, Setup
from amp_checks.core import UsageError
from amp_checks.torch_api.backend import Backend
from amp_checks.worth.count import Count
from amp_checks.worth.counter import IterationCounter
from amp_checks.worth.devices import Device
from amp_checks.worth.reasons import Reason, reasons
from amp_checks.worth.roofline import bound, intensity, ridge, seconds, total
from amp_checks.worth.timing import Timing

MOST_OPS = 12
"""Ops that the text shows, those with the most bytes first; plain values have all."""

_FP32 = Setup(changes=(AutocastOff(), ScalerOff()))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What was counted of a program under a backend, and what follows for a device.

    Attributes:
        amp, fp32: one iteration, as the program is, and with autocast and scaler off.
        device: whose peak figures the roofline has.
        reasons: why the gain is what it is, at most three.
        timing: what was measured, or None where the device is not real or that was not asked for.
    """

    case: str
    backend: str
    emulated: bool
    low: str
    amp: Count
    fp32: Count
    device: Device
    reasons: tuple[Reason, ...]
    timing: Timing | None = None

    @property
    def gain(self) -> float:
        """Time of the FP32 step over that of the AMP step, by the roofline; 1.0 where nothing ran."""
        amp = total(self.amp, self.device)
        return total(self.fp32, self.device) / amp if amp else 1.0

    @property
    def saved_share(self) -> float:
        """Bytes kept for backward under AMP over those of FP32; 1.0 where nothing is kept."""
        return self.amp.saved_bytes / self.fp32.saved_bytes if self.fp32.saved_bytes else 1.0


def worth(case: AuditCase, backend: Backend, device: Device) -> Worth:
    """Count a program under a backend.

    Raises:
        UsageError: the program cannot be built, or its step raises.
    """
    runs = Runs(case, backend)
    amp, fp32 = runs.recorded(Setup(), IterationCounter), runs.recorded(_FP32, IterationCounter)
    if fp32.failed is not None:  # it casts to 16 bits explicitly
        fp32 = runs.recorded(_FP32.but(Compute(torch.float32)), IterationCounter)
    for name, count in (("under AMP", amp), ("in FP32", fp32)):
        if count.failed is not None:
            raise UsageError(f"{case.id} raised {name}, so nothing can be counted: {count.failed}")
    return Worth(
        case=case.id,
        backend=backend.id,
        emulated=backend.emulated,
        low=backend.dtype,
        amp=amp,
        fp32=fp32,
        device=device,
        reasons=reasons(amp, device, backend.dtype),
    )


def text(found: Worth) -> str:
    """For a terminal."""
    amp, fp32, device = found.amp, found.fp32, found.device
    casts, cast_bytes = amp.casts()
    written = amp.casts("program")[0]
    held = f"weights {amp.parameters:,}, gradients {amp.gradients:,}, optimizer state {amp.optimizer_state:,}"
    because = ", because" if found.reasons else ", and nothing stands in its way"
    baseline = "TF32 on" if fp32.tf32 else "TF32 off"
    lines = [
        f"{found.case} under {found.backend}: one iteration, counted" + (" (emulated)" if found.emulated else ""),
        f"  FLOPs of products: {amp.flops:,}, {_share(amp.low_flops, amp.flops)} of them in 16 bits",
        f"  bytes read and written: {amp.bytes:,} under AMP, {fp32.bytes:,} in FP32",
        f"  casts: {casts}, {cast_bytes:,} bytes, {_share(cast_bytes, amp.bytes)} of all; in the program: {written}",
        f"  kept for backward: {_dtypes(amp)} under AMP, {_dtypes(fp32)} in FP32: {found.saved_share:.2f}",
        f"  copies of weights in 16 bits: {amp.weight_copies:,} bytes, {amp.saved_copies:,} of them kept for backward",
        f"  does not shrink, in bytes: {held}",
        "",
        f"  on {device.name} by its peak figures (FP32 baseline: {baseline}, eager): gain {found.gain:.2f}x{because}",
    ]
    for number, one in enumerate(found.reasons, 1):
        place = f"  [{', '.join(part for part in (one.where, one.module) if part)}]" if one.where else ""
        lines.append(f"  {number}. {'' if one.fault else 'by nature: '}{one.text}{place}")
        lines += [f"     change: {one.remedy}"] if one.fault and one.remedy else []
    lines += ["", f"  {'op':<36}{'calls':>6}{'FLOPs':>16}{'bytes':>14}"]
    for name, (calls, flops, size) in list(amp.by_name().items())[:MOST_OPS]:
        lines.append(f"  {name:<36}{calls:>6}{flops:>16,}{size:>14,}")
    lines += ["", *(f"  {line}" for line in found.timing.lines())] if found.timing is not None else []
    return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "none"


def _dtypes(count: Count) -> str:
    return ", ".join(f"{size:,} {name}" for name, size in sorted(count.saved.items())) or "nothing"


def as_json(found: Worth) -> dict[str, Any]:
    """Plain data, for `amp_checks.report`."""
    device, low = found.device, found.low
    return {
        "case": found.case,
        "backend": found.backend,
        "emulated": found.emulated,
        "dtype": low,
        "device": {"id": device.id, "name": device.name, "source": device.source, "bandwidth": device.bandwidth,
                   "peak": {name: device.peak(name) for name in ("float32", low)},
                   "ridge": {name: ridge(device, name) for name in ("float32", low)}},
        "gain": found.gain,
        "saved_share": found.saved_share,
        "reasons": [dataclasses.asdict(one) | {"cause": str(one.cause)} for one in found.reasons],
        "amp": _count_as_json(found.amp, device),
        "fp32": _count_as_json(found.fp32, device),
        "timing": found.timing.as_json() if found.timing is not None else None,
    }  # fmt: skip


def _count_as_json(count: Count, device: Device) -> dict[str, Any]:
    casts, cast_bytes = count.casts()
    names = ("saved", "saved_copies", "weight_copies", "parameters", "gradients", "optimizer_state", "tf32")
    return {
        "flops": count.flops,
        "low_flops": count.low_flops,
        "bytes": count.bytes,
        "casts": casts,
        "cast_bytes": cast_bytes,
        "program_casts": count.casts("program")[0],
        "seconds_on_device": total(count, device),
        **{name: getattr(count, name) for name in names},
        "ops": [
            {
                "op": op.name, "phase": op.phase, "module": op.module, "where": op.where, "dtype": op.dtype,
                "calls": calls, "flops": op.flops, "bytes": op.bytes, "intensity": intensity(op), "odd": op.odd,
                "cast": op.cast, "bound": bound(op, device, tf32=count.tf32),
                "seconds": seconds(op, device, tf32=count.tf32),
            }
            for op, calls in count.ops
        ],
    }  # fmt: skip
