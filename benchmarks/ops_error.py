"""How far correct ops are from float64, and how often slightly wrong results are seen: what the bounds rest on.

    python benchmarks/ops_error.py [--seeds 20] [--first 0] [--healthy] [BACKEND...]

Runs every error check of the family (rows, out= and in-place forms, spellings; outputs and gradients) with each seed.
Every 16-bit result is then made wrong in the ways of `WRONG` and judged again (not with ``--healthy``); a way counts as
seen where a bound is passed. Units are those of `amp_checks.families.ops.error`.
"""

from __future__ import annotations

import argparse
import collections
import os
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import torch

from amp_checks import backends, families
from amp_checks.core import Status
from amp_checks.families.ops import error
from amp_checks.families.ops.error import Pair
from amp_checks.records import known_defects
from amp_checks.suite.item import Item
from amp_checks.suite.measure import measure
from amp_checks.torch_api.numerics import SALT, Threshold, randn

DEFAULT = ("cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16")
CHECKS = ("check_error", "check_gradient_error", "check_form_error", "check_spelling_error")


UNIT = [torch.float16]
"""The 16-bit dtype in which the result was due."""


def too_large(out: torch.Tensor, _: int) -> torch.Tensor:
    return (out * 1.016).to(out.dtype)


def one_off(out: torch.Tensor, place: int) -> torch.Tensor:
    factors = torch.ones(out.numel(), dtype=torch.float64)
    factors[place] = 1.03
    return (out * factors.reshape(out.shape)).to(out.dtype)


def through_the_other(out: torch.Tensor, _: int) -> torch.Tensor:
    """Only the result is rounded: the mildest way to compute in the other dtype."""
    other = torch.bfloat16 if UNIT[0] is torch.float16 else torch.float16
    if out.is_complex():
        return torch.view_as_complex(torch.view_as_real(out).to(other).to(torch.view_as_real(out).dtype))
    return out.to(other).to(out.dtype)


WRONG: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "1.6 % too large": too_large,
    "one value 3 % off": one_off,
    "rounded to the other 16-bit dtype": through_the_other,
}

healthy: dict[tuple[str, str, str, str], tuple[float, str]] = collections.defaultdict(lambda: (0.0, ""))
seen: dict[tuple[str, str, str], list[int]] = collections.defaultdict(lambda: [0, 0])
missed: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
CURRENT = [""]
"""The item that runs."""
honest = error.judged


def judged(
    pairs: Sequence[Pair], *, unit: torch.dtype, noise: str, gradient: bool
) -> Iterator[tuple[str, float, Threshold]]:
    """As `error.judged`; keeps the ratios, and what becomes of wrong results."""
    current = CURRENT[0]
    what, width = "gradient" if gradient else "output", str(unit).removeprefix("torch.")
    found = list(honest(pairs, unit=unit, noise=noise, gradient=gradient))
    for where, ratio, _ in found:
        key = what, "float32" if width == "float32" else "16-bit", noise, where.strip() or "all"
        healthy[key] = max(healthy[key], (ratio, current))
    if width != "float32" and any(expected.any() for _, expected in pairs):
        UNIT[0] = unit
        places = pairs[0][1].reshape(-1).nonzero().reshape(-1)
        place = (
            int(places[int(1e6 * randn(1, seed=f"{current} {what}").abs()) % max(len(places), 1)]) if len(places) else 0
        )
        for name, way in WRONG.items():
            wrong = [(way(out.detach(), place), expected) for out, expected in pairs]
            caught = any(
                not ratio < bound.value for _, ratio, bound in honest(wrong, unit=unit, noise=noise, gradient=gradient)
            )
            count = seen[name, width, what]
            count[0] += caught
            count[1] += 1
            if not caught:
                missed[f"{name}, {width}, {what}"][current] += 1
    return iter(found)


def _known(item: Item) -> bool:
    """Whether torch is known to be wrong there: no part of the healthy range."""
    names = {"check": item.check.__name__, "case": item.case.id, "backend": item.backend.id}
    return any(defect.names(**names) for defect in known_defects.registered())


def main() -> None:
    """Print the healthy range of each kind with the item that shows its end, and how often each fault is seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("backend", nargs="*", default=DEFAULT)
    options = parser.parse_args()
    mock.patch.object(error, "judged", judged).start()  # for the whole process
    if options.healthy:
        WRONG.clear()
    failures = 0
    items = [
        item
        for item in families.collect(backends=backends.resolve(options.backend), families=["ops"])
        if item.check.__name__ in CHECKS and not _known(item)
    ]
    for seed in range(options.first, options.first + options.seeds):
        os.environ[SALT] = str(seed)
        for item in items:
            CURRENT[0] = f"{item.case.id} on {item.backend.id}"
            result = measure(item.check, item.case, item.backend)
            if result.status is not Status.PASSED:
                failures += 1
                print(f"seed {seed}: {result.describe()}", flush=True)
    for (what, width, noise, where), (ratio, place) in sorted(healthy.items()):
        print(f"{what:<9}{width:<8}{noise:<14}{where:<20} healthy up to {ratio:.2f} ({place})")
    for (name, width, what), (caught, count) in sorted(seen.items()):
        print(f"{name}, {width}, {what}: seen {caught} of {count} times, {caught / count:.1%}")
        for place, times in missed[f"{name}, {width}, {what}"].most_common(6):
            print(f"    missed {times} times: {place}")
    print(f"{options.seeds} seeds, items that failed: {failures}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
