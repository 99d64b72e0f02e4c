"""An audit, from case to report; and the report as text and JSON."""

from __future__ import annotations

import dataclasses
import datetime
import math
from typing import Any

import torch

from amp_checks.audit import rules
from amp_checks.audit.convergence import compare_seeds
from amp_checks.audit.diagnostics import Diagnostic, Severity
from amp_checks.audit.ignore import Ignored
from amp_checks.audit.measures import draws_in_16_bits
from amp_checks.audit.runs import Evidence, gather
from amp_checks.audit.trace import Trace
from amp_checks.audit.training import AuditCase
from amp_checks.core import Backend, first_line


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one audit found.

    Attributes:
        case, backend, emulated: of what.
        diagnostics: worst first; ignored ones too, with their reason.
        summary: figures by name, for a reader.
    """

    case: str
    backend: str
    emulated: bool
    diagnostics: tuple[Diagnostic, ...]
    summary: dict[str, str]

    def failures(self, fail_on: Severity = Severity.ERROR) -> tuple[Diagnostic, ...]:
        """What is at least as bad as that, and not ignored."""
        return tuple(one for one in self.diagnostics if one.severity.rank <= fail_on.rank and one.ignored is None)


def audit(case: AuditCase, backend: Backend, *, ignored: tuple[Ignored, ...] = ()) -> Report:
    """Run the case under the backend and judge what was seen.

    Raises:
        UsageError: the case is no case, cannot be built, or raises without AMP too.
    """
    evidence = gather(case, backend)
    found = rules.judge(evidence)
    if case.seeds:
        found += compare_seeds(case, backend)
        found.sort(key=lambda one: one.severity.rank)
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return Report(
        case=case.id,
        backend=backend.id,
        emulated=backend.emulated,
        diagnostics=tuple(_with_reason(one, ignored, today) for one in found),
        summary=_summary(evidence),
    )


def _with_reason(one: Diagnostic, ignored: tuple[Ignored, ...], today: datetime.date) -> Diagnostic:
    reason = next((row.reason for row in ignored if row.matches(one, today)), None)
    return dataclasses.replace(one, ignored=reason)


def _summary(evidence: Evidence) -> dict[str, str]:
    trace = evidence.amp
    summary = {"iterations": str(trace.steps), "optimizers": ", ".join(trace.optimizers) or "none"}
    summary |= _forward(trace)
    for name, backward in (("activations", False), ("backward", True)):
        if (peak := _peak(trace, backward=backward)) is not None:
            summary[f"largest float16 value, {name}"] = peak
    if (zeros := _most_zeros(trace)) is not None:
        summary["most zeros in a gradient"] = zeros
    if trace.scales:
        summary["loss scale at the end"] = f"{trace.scales[-1]:g}"
    skipped = sum(facts for facts in trace.first_real.values())
    if trace.scaled:
        summary["steps skipped at first"] = str(skipped)
    if draws_in_16_bits(trace):
        summary["reference"] = "none: the program draws 16-bit random numbers, which float32 does not repeat"
    elif evidence.no_fp64:
        summary["reference"] = f"float32: {evidence.no_fp64}"
    elif evidence.fp64 is not None:
        summary["reference"] = "float64"
    if trace.failure is not None:
        summary["raised"] = first_line(trace.failure.error)
    return summary


def _forward(trace: Trace) -> dict[str, str]:
    forward = [op for op in trace.ops if not op.backward and op.step == 0]
    if not forward:
        return {}
    low = sum(op.outputs[0].itemsize == 2 for op in forward)
    casts = [op for op in forward if op.is_cast and op.inputs]
    moved = sum(op.elements * (op.inputs[0].itemsize + op.outputs[0].itemsize) for op in casts)
    return {
        "forward ops": f"{len(forward)}, {low} of them in 16 bits",
        "casts": f"{len(casts)} in a forward, {moved / 2**20:.2f} MiB read and written",
    }


def _peak(trace: Trace, *, backward: bool) -> str | None:
    ops = [
        op
        for op in trace.ops
        if op.backward is backward and torch.float16 in op.outputs and math.isfinite(op.high - op.low)
    ]
    if not ops:
        return None
    worst = max(ops, key=lambda op: max(abs(op.low), abs(op.high)))
    size = max(abs(worst.low), abs(worst.high))
    bits = f"{math.log2(65504 / size):.1f} bits below 65504" if size else "all zero"
    where = f", at {worst.where}" if worst.where else ""
    return f"{size:.4g} ({bits}), {worst.name}{where}"


def _most_zeros(trace: Trace) -> str | None:
    zeros = {name: float((value == 0).double().mean()) for name, value in trace.gradients.items() if value.numel()}
    if not zeros:
        return None
    name = max(zeros, key=lambda key: zeros[key])
    small = (trace.gradients[name] != 0) & (trace.gradients[name].abs() < torch.finfo(torch.float16).tiny)
    return f"{zeros[name]:.1%} of {name}, and {float(small.double().mean()):.1%} below 6.1e-5"


def text(report: Report) -> str:
    """For a terminal."""
    note = "  (emulated: the rules are the device's, the kernels are the CPU's)" if report.emulated else ""
    lines = [f"{report.case} under {report.backend}{note}"]
    lines += [f"  {name}: {value}" for name, value in report.summary.items()]
    for one in report.diagnostics:
        lines.append("")
        lines.append(f"  {one.severity.upper()} {one.rule}" + (f"  [{one.place}]" if one.place else ""))
        lines.append(f"    {one.message}")
        lines.append(f"    remedy: {one.remedy}")
        if one.ignored is not None:
            lines.append(f"    ignored: {one.ignored}")
    counts = [
        f"{sum(one.severity is severity and one.ignored is None for one in report.diagnostics)} {severity}s"
        for severity in Severity
    ]
    lines += ["", f"  {', '.join(counts)}"]
    return "\n".join(lines)


def as_json(report: Report) -> dict[str, Any]:
    """Plain data, for `amp_checks.report.json_format.dumps`."""
    return {
        "case": report.case,
        "backend": report.backend,
        "emulated": report.emulated,
        "diagnostics": [{**dataclasses.asdict(one), "severity": str(one.severity)} for one in report.diagnostics],
        "summary": dict(report.summary),
    }
