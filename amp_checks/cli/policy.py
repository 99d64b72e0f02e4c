"""``amp-checks policy``: the cast policy of every op as recorded, as registered, and as seen at the op's entry."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from amp_checks import backends
from amp_checks.core import Backend, CastPolicy, UsageError, exact
from amp_checks.families.ops.cases import OVERLOADS
from amp_checks.families.ops.observed import observe
from amp_checks.families.ops.rows import OpCase
from amp_checks.records import cast_policy, known_defects
from amp_checks.report import files, values

SCHEMA = "amp_checks/policy"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One op on one device type.

    Attributes:
        op: the overload, ``softmax.int``.
        declared: its recorded policy; None: no rule is recorded.
        registered: whether this torch registers a rule for it.
        observed: what the rule did with its inputs; None: it cannot be seen here, as ``unseen`` says.
        unseen: why it cannot.
    """

    op: str
    declared: CastPolicy | None
    registered: bool
    observed: CastPolicy | None
    unseen: str = ""

    @property
    def agrees(self) -> bool:
        """Recorded, registered, and seen to do what is recorded (or not to be seen here)."""
        return self.registered and self.declared is not None and self.observed in (self.declared, None)


def rules(backend: Backend) -> tuple[Rule, ...]:
    """Every op of a backend's device type that is recorded or registered, in alphabetical order."""
    declared = cast_policy.declared(backend.device_type)
    registered = cast_policy.registered(backend.device_type)
    found = []
    with backend.activate():
        for name in sorted(set(declared) | registered):
            case = OVERLOADS.get(name)
            unseen = _unseen(case, backend)
            found.append(
                Rule(
                    op=name,
                    declared=declared.get(name),
                    registered=name in registered,
                    observed=None if unseen or case is None else observe(case, backend),
                    unseen=unseen,
                )
            )
    return tuple(found)


def _unseen(case: OpCase | None, backend: Backend) -> str:
    if case is None:
        return "no row gives its inputs"
    if case.call:
        return "named tensors cannot be looked at at an op's entry"
    return case.device_only if backend.emulated else ""


def default_backends() -> tuple[Backend, ...]:
    """One backend per device type with recorded rules: the device where it is there, else its emulation."""
    chosen = []
    for device in cast_policy.DEVICE_TYPES:
        real = f"{device}-float16"
        if real in backends.IDS and backends.why_unavailable(real) is None:
            chosen.append(backends.backend(real))
        else:
            chosen.append(backends.emulated(device, "float16"))
    return tuple(chosen)


def main(args: argparse.Namespace) -> int:
    """Print the three views and their coverage; 1 where they disagree, else 0.

    Args:
        args: ``backend``: ids, one per device type where empty; ``json``: a file or ``-``, or None.

    Raises:
        UsageError: a backend is unknown or cannot run here.
    """
    chosen = backends.resolve(args.backend) if args.backend else default_backends()
    for backend in chosen:
        if backend.id in backends.IDS and (reason := backends.why_unavailable(backend.id)) is not None:
            raise UsageError(f"{backend.id} cannot run: {reason}")
    found = {backend: rules(backend) for backend in chosen}
    if args.json == "-":
        sys.stdout.write(values.dumps(document(found)))
    else:
        sys.stdout.write("\n".join(describe(found)) + "\n")
        if args.json:
            files.write(Path(args.json), document(found))
    return int(not all(rule.agrees or known_defect(backend, rule) for backend, own in found.items() for rule in own))


def known_defect(backend: Backend, rule: Rule) -> str:
    """Id of the known defect of `check_every_rule` that says what the rule does there; empty where there is none."""
    finding = exact(f"policy of {rule.op}", actual=rule.observed, expected=rule.declared, why="fixtures/cast_policy")
    for defect in known_defects.registered():
        if defect.names(check="check_every_rule", case="rules", backend=backend.id) and any(
            expected.matches(finding) for expected in defect.expects
        ):
            return defect.id
    return ""


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
