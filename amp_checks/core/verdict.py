"""The verdict on a whole run: one line for a person and one exit status, decided here and nowhere else.

A run, ``amp-checks report --gate`` on its results and every report format call `judge` with the same facts.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Iterable, Sequence

from amp_checks.core.model import Result, Status

RAN = (Status.PASSED, Status.FAILED, Status.KNOWN_DEFECT)
"""A verdict was reached: anything else measured nothing, or not to the end."""


class Outcome(enum.IntEnum):
    """How a run ended, as an exit status; pytest's own 2, 3 and 4 mean the same.

    ``WRONG``: a check, another test or an audit failed. ``UNFINISHED``: interrupted. ``BROKEN``: the suite itself
    failed. ``UNMET``: bad usage, nothing ran, or a condition of the gate is not met.
    """

    OK = 0
    WRONG = 1
    UNFINISHED = 2
    BROKEN = 3
    UNMET = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What a run comes to: one line for a person, and the exit status that goes with it."""

    line: str
    outcome: Outcome


def judge(
    results: Iterable[Result],
    *,
    ended: Outcome = Outcome.OK,
    errors: Sequence[str] = (),
    failures: Sequence[str] = (),
    audits: int = 0,
) -> Verdict:
    """The verdict on a run, or on several merged.

    What is wrong counts first, however the run ended; then what broke; then whether the run came to its end.

    Args:
        results: of the items.
        ended: how the run itself ended, whatever its items say: OK where it came to its end.
        errors: conditions of the run as a whole that are not met.
        failures: what failed besides the items, a sentence each.
        audits: how many audits there are where there are audits alone; they need no results.
    """
    counts: collections.Counter[Status] = collections.Counter()
    backends = set()
    for result in results:
        counts[result.status] += 1
        if result.status in RAN:
            backends.add(result.backend)
    ran = sum(counts[status] for status in RAN)
    on = ", ".join(f"{name} (emulated)" if name.startswith("emulated-") else name for name in sorted(backends))
    failed, broken = counts[Status.FAILED], counts[Status.ERROR]
    if failed:
        return Verdict(f"AMP IS WRONG: {failed} of {ran} checks failed on {on}", Outcome.WRONG)
    if failures:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        right = f"; {ran} checks ran and none failed on {on}" if ran else ""
        return Verdict(f"FAILED: {failures[0]}{more}{right}", Outcome.WRONG)
    if broken:
        where = f" on {on}" if ran else ", and none ran to its end"
        return Verdict(f"NO VERDICT: {broken} checks broke (the suite's own failure){where}", Outcome.BROKEN)
    if ended is not Outcome.OK:
        what = f"the run did not finish; the {ran} checks that did are right on {on}" if ran else "nothing ran"
        return Verdict(f"NO VERDICT: {what}", ended)
    if errors and ran:
        return Verdict(f"NO VERDICT: {errors[0]}; {ran} checks ran on {on}", Outcome.UNMET)
    if errors or not (ran or audits):
        return Verdict("NO VERDICT: nothing ran", Outcome.UNMET)
    return Verdict(f"AMP is right: {ran} checks ran on {on}" if ran else "no errors", Outcome.OK)
