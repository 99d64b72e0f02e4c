"""An earlier ``amp-checks worth --json`` as a record: what got worse since; times on the same machine alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from amp_checks.core import SuiteError, UsageError
from amp_checks.report import worths
from amp_checks.report.document import WORTHS

SLACK = 1.02
"""A count that grew by less is no regression: a few scalars come and go between versions of torch."""

Record = Mapping[tuple[str, str], dict[str, Any]]
"""Case and backend -> what was counted."""


def load(path: Path) -> Record:
    """Read a record.

    Raises:
        UsageError: it cannot be read, or is no document of `WORTHS`.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read as a record: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as a record: it is no JSON: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != WORTHS or not isinstance(content.get("worths"), list):
        raise UsageError(f"{path} is no record: it is not what amp-checks worth --json writes")
    try:
        worths.arrange(content["worths"])
        return {(one["case"], one["backend"]): one for one in content["worths"]}
    except (SuiteError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no whole record: {error}") from error


def worse(found: Sequence[dict[str, Any]], record: Record) -> list[str]:
    """What got worse, a sentence each.

    Raises:
        UsageError: the record has none of what was counted.
    """
    pairs = [(now, record[key]) for now in found if (key := (now["case"], now["backend"])) in record]
    if not pairs:
        raise UsageError("the record holds none of the programs and backends that were counted")
    return [line for now, before in pairs for line in _worse(now, before)]


def _worse(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    name = f"{now['case']} under {now['backend']}"
    lines = []
    for key, words in (
        ("bytes", "reads and writes"),
        ("cast_bytes", "casts"),
        ("weight_copies", "copies of weights take"),
    ):
        if now["amp"][key] > SLACK * before["amp"][key]:
            lines.append(f"{name}: {words} {now['amp'][key]:,} bytes, {before['amp'][key]:,} in the record")
    if now["saved_share"] > SLACK * before["saved_share"]:
        lines.append(
            f"{name}: keeps {now['saved_share']:.3f} of FP32's bytes, {before['saved_share']:.3f} in the record"
        )
    if _share(now) < _share(before) / SLACK:
        lines.append(f"{name}: {_share(now):.0%} of its FLOPs are in 16 bits, {_share(before):.0%} in the record")
    old, new = before.get("timing"), now.get("timing")
    if old and new and all(old[key] == new[key] for key in ("machine", "torch", "baseline")):
        was = {speed["dtype"]: speed for speed in old["speeds"]}
        lines += [
            f"{name}: {speed['dtype']} is {speed['speedup']:.2f}x, {was[speed['dtype']]['speedup']:.2f}x in the record"
            for speed in new["speeds"]
            if speed["dtype"] in was and speed["high"] < was[speed["dtype"]]["low"]
        ]
    return lines


def _share(one: dict[str, Any]) -> float:
    return float(one["amp"]["low_flops"] / one["amp"]["flops"]) if one["amp"]["flops"] else 1.0
