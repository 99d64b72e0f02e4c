"""``amp-checks policy``: the cast policy of every op as recorded, as registered, and as seen at the op's entry."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch

from amp_checks import backends
from amp_checks.cli import collectives, output, unsupported
from amp_checks.core import CastPolicy, UsageError
from amp_checks.families.ops import observed
from amp_checks.families.ops.observed import Rule, known_defect
from amp_checks.records import cast_policy
from amp_checks.torch_api.backend import Backend

SCHEMA = "amp_checks/policy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `main` reads."""
    output.add_backend(parser)
    parser.add_argument("--unsupported", action="store_true", help="the ops that do not run in 16 bits, and the remedy")
    parser.add_argument(
        "--fresh", action="store_true", help="with --unsupported: run torch's op database, recorded or not"
    )
    parser.add_argument(
        "--collectives", action="store_true", help="what two ranks send in a step, by wrapper and policy, as observed"
    )
    output.add_json(parser, "the table")


def main(args: argparse.Namespace) -> int:
    """Print the three views and their coverage; 1 where they disagree, else 0.

    Args:
        args: ``backend``: ids, one per device type where empty; ``json``: a file or ``-``, or None;
            ``unsupported``: print instead what `amp_checks.cli.unsupported` knows, ``fresh`` or not;
            ``collectives``: print instead what `amp_checks.cli.collectives` knows.

    Raises:
        UsageError: a backend is unknown or cannot run here.
    """
    if args.collectives and (args.unsupported or args.fresh):
        raise UsageError("--collectives is a table of its own: neither --unsupported nor --fresh goes with it")
    if args.collectives:
        return collectives.main(args)
    if args.unsupported:
        return unsupported.main(args)
    if args.fresh:
        raise UsageError("--fresh goes with --unsupported: cast policies are looked at each time")
    chosen = output.chosen_backends(args) if args.backend else backends.one_per_device_type()
    found = {backend: observed.rules(backend) for backend in chosen}
    output.emit(args, document(found), "\n".join(describe(found)))
    return int(not all(rule.agrees or known_defect(backend, rule) for backend, own in found.items() for rule in own))


def describe(found: dict[Backend, tuple[Rule, ...]]) -> list[str]:
    """A table by device type and policy, then every op on which the three views differ."""
    table = cast_policy.table_for(torch.__version__)
    head = f"{'backend':<24}{'policy':<22}{'declared':>9}{'registered':>11}{'observed':>9}{'coverage':>10}"
    lines = [f"cast policies of torch {torch.__version__}, against the table of {table.torch}", head, "-" * len(head)]
    for backend, listed in found.items():
        for name in CastPolicy:
            own = [rule for rule in listed if rule.declared is name]
            if own:
                lines.append(_line(backend.id, name, own))
        lines.append(_line(backend.id, "all", listed))
    for backend, listed in found.items():
        for rule in listed:
            if not rule.agrees:
                registered = "registered" if rule.registered else "not registered"
                known = known_defect(backend, rule)
                lines.append(
                    f"{f'known defect {known} on' if known else 'DIFFERS'} {backend.id}: {rule.op}: declared "
                    f"{rule.declared}, {registered}, observed {rule.observed}"
                )
            elif rule.unseen:
                lines.append(f"not seen on {backend.id}: {rule.op}: {rule.unseen}")
    return lines


def _line(backend: str, name: str, listed: Sequence[Rule]) -> str:
    declared = sum(rule.declared is not None for rule in listed)
    registered = sum(rule.registered for rule in listed)
    observed = sum(rule.observed is not None and rule.observed is rule.declared for rule in listed)
    covered = sum(rule.registered and rule.declared is not None for rule in listed)
    share = f"{100 * covered / max(registered, 1):.0f} %"
    return f"{backend:<24}{name:<22}{declared:>9}{registered:>11}{observed:>9}{share:>10}"


def document(found: dict[Backend, tuple[Rule, ...]]) -> dict[str, Any]:
    """The three views as plain values, which ``amp-checks diff`` reads back."""
    table = cast_policy.table_for(torch.__version__)
    return {
        "schema": SCHEMA,
        "version": 1,
        "torch": torch.__version__,
        "table": table.torch,
        "devices": {
            backend.device_type: {
                "backend": backend.id,
                "source": table.source.get(backend.device_type, ""),
                "rules": {
                    rule.op: {
                        "declared": rule.declared,
                        "registered": rule.registered,
                        "observed": rule.observed,
                        "unseen": rule.unseen,
                    }
                    for rule in listed
                },
            }
            for backend, listed in found.items()
        },
    }
