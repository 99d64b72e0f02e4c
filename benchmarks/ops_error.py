"""How far correct ops are from float64, and how far bfloat16 passed off as float16 is: what the bounds stand on.

    python benchmarks/ops_error.py [BACKEND...]

Ratios are in the unit of the checks: ``max|out - ref64| / (eps(run dtype) * max|ref64|)``.
"""

from __future__ import annotations

import collections
import sys

import torch

from amp_checks import backends, families
from amp_checks.core import Backend, CastPolicy
from amp_checks.families.ops import error
from amp_checks.families.ops.rows import OpCase
from amp_checks.families.ops.trial import Trial, outcome
from amp_checks.records import cast_policy
from amp_checks.suite.measure import measure

DEFAULT = ("cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16")


def passed_off(case: OpCase, backend: Backend) -> float:
    """The error of the op's correct float16 result rounded to bfloat16."""
    with backend.activate():
        trial = Trial(case, backend)
        pairs = list(zip(trial.without.tensors, trial.reference.tensors, strict=False))
    return max((error.error_of(a.bfloat16().half(), b, run_dtype=torch.float16) for a, b in pairs), default=0.0)


def lowered(case: OpCase, backend: Backend) -> float:
    """The error of a float32 op of which every input was rounded to float16: the mildest way to lose a float32 rule."""
    trial = Trial(case, backend)
    rounded = trial.call.with_tensors(lambda t: t.half().float() if t.dtype is torch.float32 else t)
    pairs = zip(outcome(rounded.run).tensors, trial.reference.tensors, strict=False)
    floats = [(a, b) for a, b in pairs if a.is_floating_point() or a.is_complex()]
    return max((error.error_of(a, b, run_dtype=torch.float32) for a, b in floats), default=float("nan"))


def main() -> None:
    """Print the worst healthy ratio of each kind, the op that shows it, and how many ops show a bfloat16 impostor."""
    chosen = [backends.backend(name) for name in sys.argv[1:] or DEFAULT]
    worst: dict[tuple[str, str, str], tuple[float, str]] = collections.defaultdict(lambda: (0.0, ""))
    impostors: dict[str, float] = {}
    losses: dict[str, float] = {}
    for item in families.collect(backends=chosen, families=["ops"], full=True):
        if item.check.__name__ not in ("check_error", "check_gradient_error"):
            continue
        case = item.case
        assert isinstance(case, OpCase)
        result = measure(item.check, case, item.backend)
        for finding in result.findings:
            if "error against float64" in finding.subject:
                width = "float32" if finding.subject.endswith("float32") else "16-bit"
                kind = "any" if width == "16-bit" else case.noise
                key = (item.check.__name__, width, kind)
                worst[key] = max(worst[key], (finding.ratio, f"{case.id} on {item.backend.id}"))
        lowers = cast_policy.of(case.id, item.backend.device_type) is CastPolicy.LOWER_PRECISION_FP
        if lowers and item.backend.dtype == "float16" and item.check.__name__ == "check_error" and not case.fails:
            impostors[case.id] = max(impostors.get(case.id, 0.0), passed_off(case, item.backend))
        single = cast_policy.of(case.id, item.backend.device_type) is CastPolicy.FP32 and not item.backend.emulated
        if single and item.backend.dtype == "float16" and item.check.__name__ == "check_error":
            losses[case.id] = lowered(case, item.backend)
    for (check, width, kind), (ratio, where) in sorted(worst.items()):
        print(f"{check:<22}{width:<9}{kind:<15}healthy up to {ratio:.2f} ({where})")
    bound = error.SIXTEEN_BITS.forward.value
    seen = sum(ratio > bound for ratio in impostors.values())
    weak = sorted((ratio, name) for name, ratio in losses.items() if ratio == ratio)  # noqa: PLR0124 - NaN: no floats
    print(
        f"inputs of float32 ops rounded to float16: least {weak[0][0]:.0f} ({weak[0][1]}), median "
        f"{weak[len(weak) // 2][0]:.0f}, over the bound for {sum(r > 16 for r, _ in weak)} of {len(weak)} ops"
    )
    print(f"bfloat16 passed off as float16: over the bound of {bound} for {seen} of {len(impostors)} ops")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
