"""What changed in the autocast rules between two torch versions: what a team reads before it upgrades.

Each side is a torch version with a recorded table (see `amp_checks.records.cast_policy.recorded`), or a file that
``amp-checks policy --json`` wrote; of a file, the rules that were registered count, with the policy that was seen.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amp_checks.cli import output
from amp_checks.core import CastPolicy, UsageError
from amp_checks.records import cast_policy
from amp_checks.report import values

SCHEMA = "amp_checks/policy-diff"
NO_RULE = CastPolicy.UNLISTED.value

Rules = Mapping[str, Mapping[str, str]]
"""Device type -> overload -> name of its policy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two: a name for it, and its rules."""

    name: str
    rules: Rules


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An op whose policy differs on a device type; ``unlisted``: it has no rule there."""

    device_type: str
    op: str
    before: str
    after: str


def side(name: str) -> Side:
    """Read one side.

    Raises:
        UsageError: neither a recorded version nor a file that ``amp-checks policy --json`` wrote.
    """
    if name in cast_policy.recorded():
        table = cast_policy.recorded()[name]
        recorded = {device: _texts(table.of(device, cuda_build=True)) for device in table.rules}
        return Side(name=f"torch {name} (recorded)", rules=recorded)
    path = Path(name)
    if not path.is_file():
        known = ", ".join(cast_policy.recorded())
        raise UsageError(
            f"{name!r} is neither a file nor a torch version with a recorded table; those are {known}. "
            "For another version, run there: amp-checks policy --json FILE"
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rules = {device: _registered(part["rules"]) for device, part in document["devices"].items()}
        version = document["torch"]
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise UsageError(f"{path} is no file that amp-checks policy --json wrote: {error!r}") from error
    return Side(name=f"torch {version} ({path.name})", rules=rules)


def _registered(rules: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The rules that were registered, with the policy that was seen, or where none could be seen the recorded one."""
    return {
        op: str(rule["observed"] or rule["declared"] or "not seen") for op, rule in rules.items() if rule["registered"]
    }


def accepts(name: str) -> bool:
    """Whether `side` can make something of it: a recorded version, or a file of cast policies (not one of results)."""
    try:
        side(name)
    except UsageError:
        return False
    return True


def _texts(rules: Mapping[str, CastPolicy]) -> dict[str, str]:
    return {op: str(rule) for op, rule in rules.items()}


def changes(old: Side, new: Side) -> tuple[Change, ...]:
    """Every op whose policy differs on a device type that both sides know, by device type and op."""
    found = []
    for device in (device for device in old.rules if device in new.rules):
        before, after = old.rules[device], new.rules[device]
        for op in sorted(set(before) | set(after)):
            pair = before.get(op, NO_RULE), after.get(op, NO_RULE)
            if pair[0] != pair[1]:
                found.append(Change(device_type=device, op=op, before=pair[0], after=pair[1]))
    return tuple(found)


def text(old: Side, new: Side) -> list[str]:
    """For a terminal."""
    found = changes(old, new)
    lines = [f"autocast rules: {old.name} -> {new.name}: {len(found)} changes"]
    for device in dict.fromkeys(change.device_type for change in found):
        own = [change for change in found if change.device_type == device]
        lines.append(f"{device}: {len(old.rules[device])} rules -> {len(new.rules[device])}, {len(own)} changes")
        lines += [f"  {change.op:<28} {change.before} -> {change.after}" for change in own]
    lines += _uncompared(old, new)
    return lines


def markdown(old: Side, new: Side) -> list[str]:
    """For a pull request."""
    found = changes(old, new)
    lines = [f"### Autocast rules: {old.name} to {new.name}", "", f"{len(found)} changes."]
    if found:
        lines += ["", "| device | op | before | after |", "| --- | --- | --- | --- |"]
        lines += [f"| {c.device_type} | `{c.op}` | {c.before} | {c.after} |" for c in found]
    return lines + [f"\n{line}" for line in _uncompared(old, new)]


def _uncompared(old: Side, new: Side) -> list[str]:
    alone = sorted(set(old.rules) ^ set(new.rules))
    return [f"not compared, known to one side only: {', '.join(alone)}"] if alone else []


def document(old: Side, new: Side) -> dict[str, Any]:
    """For a program."""
    return {
        "schema": SCHEMA,
        "version": 1,
        "old": old.name,
        "new": new.name,
        "changes": [dataclasses.asdict(change) for change in changes(old, new)],
    }


def main(args: argparse.Namespace) -> int:
    """Print what changed: text, or ``args.format`` ``markdown`` or ``json``; 0 also where something did.

    Args:
        args: ``old`` and ``new``, each a version or a file; ``format``: ``text``, ``markdown`` or ``json``;
            ``output``: a file, or None for standard output.
    """
    old, new = side(args.old), side(args.new)
    if args.format == "json":
        output.write(args.output, values.dumps(document(old, new)))
    else:
        output.write(args.output, "\n".join((markdown if args.format == "markdown" else text)(old, new)) + "\n")
    return 0
