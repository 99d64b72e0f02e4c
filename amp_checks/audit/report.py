"""An audit, from case to report; and the report as text and JSON."""

from __future__ import annotations

import dataclasses
import datetime
import math
from typing import Any

import torch

from amp_checks.audit import causes, rules
from amp_checks.audit.case import AuditCase
from amp_checks.audit.convergence import compare_seeds
from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Diagnostic, Severity
from amp_checks.audit.ignore import Ignored
from amp_checks.audit.measures import draws_in_16_bits, low_dtype
from amp_checks.audit.modules import ModuleFacts, by_module, first_scale, together
from amp_checks.audit.runs.plan import Runs
from amp_checks.audit.watching import magnitudes
from amp_checks.audit.watching.magnitudes import Magnitudes
from amp_checks.audit.watching.trace import Trace
from amp_checks.backends import in_float32
from amp_checks.core import first_line
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import dtype_name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one audit found.

    Attributes:
        case, backend, emulated: of what.
        diagnostics: worst first; ignored ones too, with their reason.
        summary: figures by name, for a reader.
        modules: a row for each module that ran, in the order in which they first ran.
        incomplete: why not all rules have judged; None where they have.
    """

    case: str
    backend: str
    emulated: bool
    diagnostics: tuple[Diagnostic, ...]
    summary: dict[str, str]
    modules: tuple[ModuleFacts, ...] = ()
    incomplete: str | None = None

    def failures(self, fail_on: Severity = Severity.ERROR) -> tuple[Diagnostic, ...]:
        """What is at least as bad as that, and not ignored."""
        return tuple(one for one in self.diagnostics if one.severity.rank <= fail_on.rank and one.ignored is None)

    def raise_for_findings(self, fail_on: Severity | str = Severity.ERROR) -> None:
        """Nothing, where nothing was found that is at least as bad as that, or it was ignored.

        Raises:
            AssertionError: something was, or not all rules have judged; its text is the report.
            ValueError: there is no such severity.
        """
        if self.failures(Severity(fail_on)) or self.incomplete is not None:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        return text(self)


def audit(case: AuditCase, backend: Backend, *, ignored: tuple[Ignored, ...] = (), quick: bool = False) -> Report:
    """Run the case under the backend and judge what was seen.

    Args:
        case: what.
        backend: under which AMP.
        ignored: findings that are known.
        quick: make two runs, and judge by what they show: what happens in the program, against float32.

    Raises:
        UsageError: the case is no case, cannot be built, or raises without AMP too.
    """
    backend = in_float32(backend)
    report: Report = case.apart(lambda: _audit(case, backend, ignored, quick=quick))
    return report


def _audit(case: AuditCase, backend: Backend, ignored: tuple[Ignored, ...], *, quick: bool) -> Report:
    evidence = Evidence(Runs(case, backend))
    today = datetime.datetime.now(tz=datetime.UTC).date()
    found: list[Diagnostic] = []
    incomplete = None
    with evidence.runs.together():
        try:
            if not quick:
                evidence.runs.settle()
                evidence.prepare()
            evidence.check()
            evidence = evidence.from_two_runs() if quick else evidence
            for one in rules.judging(evidence):
                found.append(_with_reason(one, ignored, today))
            found = [_with_reason(one, ignored, today) for one in causes.explain(rules.in_order(found), evidence)]
        except KeyboardInterrupt:
            if not case.isolated or not evidence.runs.has_run:
                raise
            found, incomplete = rules.in_order(found), "interrupted before all rules had judged"
    if case.seeds and evidence.amp.failure is None:  # what raises trains in neither way
        found = [*(_with_reason(one, ignored, today) for one in compare_seeds(case, backend)), *found]
    return Report(
        case=case.id,
        backend=backend.id,
        emulated=backend.emulated,
        diagnostics=tuple(found),
        summary=_figures(evidence) if incomplete else _figures(evidence) | _references(evidence),
        modules=by_module(evidence.amp, found, root=evidence.amp.root),
        incomplete=incomplete,
    )


def _with_reason(one: Diagnostic, ignored: tuple[Ignored, ...], today: datetime.date) -> Diagnostic:
    reason = next((row.reason for row in ignored if row.matches(one, today)), None)
    return dataclasses.replace(one, ignored=reason)


def _figures(evidence: Evidence) -> dict[str, str]:
    trace = evidence.amp
    summary = {"iterations": str(trace.steps), "optimizers": ", ".join(trace.optimizers) or "none"}
    if not trace.optimizers:
        summary["not judged"] = "what becomes of the gradients: no torch.optim.Optimizer was made; see to their scale"
    summary |= _forward(trace)
    summary |= _value_sizes(trace) | _gradient_sizes(trace)
    if (zeros := _most_zeros(trace)) is not None:
        summary["most zeros in a gradient"] = zeros
    if trace.scales:
        summary["loss scale at the end"] = f"{trace.scales[-1]:g}"
    skipped = sum(trace.first_real.values())
    if (settled := evidence.runs.settled) is not None:
        summary["loss scale at the start"] = (
            f"{settled.start:g}; from the program's own, {settled.own:g}, all was skipped"
        )
    if trace.scaled:
        summary["steps skipped at first"] = str(skipped)
    if trace.failure is not None:
        summary["raised"] = first_line(trace.failure.error)
    return summary | trace.notes


def _references(evidence: Evidence) -> dict[str, str]:
    """What the program was compared with, and what of it was not."""
    summary = {}
    if draws_in_16_bits(evidence.amp):
        summary["reference"] = "none: the program draws 16-bit random numbers, which float32 does not repeat"
    elif evidence.no_fp64:
        summary["reference"] = f"float32: {evidence.no_fp64}"
    elif evidence.fp64 is not None:
        summary["reference"] = "float64"
    if evidence.quick and evidence.compared.amp is not evidence.amp:
        summary["not judged"] = "loss and gradients, which differ from float32's: audit without --quick"
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
        if op.backward is backward and op.magnitudes is not None and op.magnitudes.dtype is torch.float16
        if math.isfinite(op.high - op.low)
    ]
    if not ops:
        return None
    worst, size = max(((op, op.magnitudes.greatest) for op in ops if op.magnitudes), key=lambda pair: pair[1])
    bits = f"{math.log2(65504 / size):.1f} bits below 65504" if size else "all zero"
    where = f", at {worst.where}" if worst.where else ""
    return f"{size:.4g} ({bits}), {worst.name}{where}"


def _value_sizes(trace: Trace) -> dict[str, str]:
    found = {}
    for name, backward in (("activations", False), ("backward", True)):
        if (peak := _peak(trace, backward=backward)) is not None:
            found[f"largest float16 value, {name}"] = peak
        if (sizes := _sizes(trace, backward=backward)) is not None:
            found[f"headroom, {name}"] = sizes.describe()
    return found


def _sizes(trace: Trace, *, backward: bool) -> Magnitudes | None:
    found: Magnitudes | None = None
    for op in trace.ops:
        if op.backward is backward:
            found = together(found, op.magnitudes)
    return found


def _gradient_sizes(trace: Trace) -> dict[str, str]:
    """Gradients of parameters as 16 bits would hold them: under the loss scale, and without it."""
    low, scale = low_dtype(trace), first_scale(trace)
    if low is None or not trace.gradients:
        return {}
    flat = torch.cat([gradient.flatten() for gradient in trace.gradients.values()])
    named = {"headroom, gradients unscaled": flat}
    if trace.scaled:
        named = {f"headroom, gradients at loss scale {scale:g}": flat * scale, **named}
    sizes = {name: magnitudes.of(values, low) for name, values in named.items()}
    return {name: found.describe() for name, found in sizes.items() if found is not None}


def _most_zeros(trace: Trace) -> str | None:
    zeros = {name: float((value == 0).double().mean()) for name, value in trace.gradients.items() if value.numel()}
    if not zeros:
        return None
    name = max(zeros, key=lambda key: zeros[key])
    small = (trace.gradients[name] != 0) & (trace.gradients[name].abs() < torch.finfo(torch.float16).tiny)
    return f"{zeros[name]:.1%} of {name}, and {float(small.double().mean()):.1%} below 6.1e-5"


def text(report: Report, *, modules: bool = False) -> str:
    """For a terminal; ``modules`` adds the table by module."""
    note = "  (emulated: the rules are the device's, the kernels are the CPU's)" if report.emulated else ""
    lines = [f"{report.case} under {report.backend}{note}"]
    lines += [f"  {name}: {value}" for name, value in report.summary.items()]
    lines += _module_lines(report.modules) if modules else []
    for one in report.diagnostics:
        place = f"  [{one.place}]" if one.place else ""
        if one.follows_from is not None:
            lines.append(f"    - {one.rule} follows from {one.follows_from}, and goes away with it{place}")
            lines.append(f"      {one.message}")
            continue
        lines += ["", f"  {one.severity.upper()} {one.rule}{place}", f"    {one.message}", f"    remedy: {one.remedy}"]
        if one.ignored is not None:
            lines.append(f"    ignored: {one.ignored}")
    own = [one for one in report.diagnostics if one.ignored is None and one.follows_from is None]
    counts = [f"{sum(one.severity is severity for one in own)} {severity}s" for severity in Severity]
    lines += ["", f"  {', '.join(counts)}"]
    if report.incomplete is not None:
        lines.append(f"  incomplete: {report.incomplete}")
    return "\n".join(lines)


def _module_lines(rows: tuple[ModuleFacts, ...]) -> list[str]:
    """A line for each module, then its sizes; the columns are those of the HTML report."""
    lines = ["", "  by module (ops of one forward, in 16 bits, casts):"]
    width = max((len(row.path) for row in rows), default=0)
    for row in rows:
        found = f"  {', '.join(row.findings)}" if row.findings else ""
        lines.append(f"    {row.path:<{width}}  {row.ops:>4} {row.low_ops:>4} {row.casts:>4}{found}")
        for name, words in SIZES.items():
            sizes: Magnitudes | None = getattr(row, name)
            if sizes is not None:
                lines.append(f"      {words}: {sizes.describe()}")
    return lines


SIZES = {
    "activations": "activations",
    "backward": "backward",
    "scaled": "gradients, scaled",
    "gradients": "gradients, unscaled",
}
"""The sizes of a module's row, in words."""


def as_json(report: Report) -> dict[str, Any]:
    """Plain data, for `amp_checks.report.json_format.dumps`."""
    return {
        "case": report.case,
        "backend": report.backend,
        "emulated": report.emulated,
        "diagnostics": [{**dataclasses.asdict(one), "severity": str(one.severity)} for one in report.diagnostics],
        "summary": dict(report.summary),
        "modules": [_module_as_json(row) for row in report.modules],
        "incomplete": report.incomplete,
    }


def _module_as_json(row: ModuleFacts) -> dict[str, Any]:
    plain = dataclasses.asdict(row)
    for name in SIZES:
        sizes: Magnitudes | None = getattr(row, name)
        if sizes is not None:
            plain[name] |= {
                "dtype": dtype_name(sizes.dtype),
                "bits_to_overflow": sizes.bits_to_overflow,
                "bits_to_zero": sizes.bits_to_zero,
            }
    return plain
