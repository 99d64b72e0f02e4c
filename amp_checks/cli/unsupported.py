"""``amp-checks policy --unsupported``: the ops that a device does not run in 16 bits, and what to write instead."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch

from amp_checks.cli import output
from amp_checks.core import UsageError
from amp_checks.families.fp32_only import sweep
from amp_checks.records import low_precision
from amp_checks.records.low_precision import Found, Kind, Meets, Outcome, Seen
from amp_checks.torch_api.backend import Backend

SCHEMA = "amp_checks/unsupported"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What is known of one backend; ``recorded`` says that it was not looked at now, but under the torch it names."""

    found: Found
    recorded: bool


def remedy(seen: Seen, backend: Backend) -> str:
    """One line of code that runs the op in FP32; empty where none is needed."""
    outcomes = [outcome for outcome in (seen.forward, seen.backward) if outcome is not None]
    if not seen.lacks and all(outcome.kind is not Kind.WRONG for outcome in outcomes):
        return ""
    if seen.op == "broadcast_shapes":
        return ""  # it takes shapes, and has no dtype
    if seen.op.startswith("signal.windows."):
        return f"torch.{seen.op}(n, dtype=torch.float32)"
    if seen.meets is Meets.RULE and seen.lacks != "backward":
        return f"none inside a region; outside: {_call(seen.op)}"
    return f'with torch.autocast("{backend.device_type}", enabled=False): y = {_call(seen.op)}'


_CALLS = {
    "_upsample_bilinear2d_aa": 'torch.nn.functional.interpolate(x.float(), size, mode="bilinear", antialias=True)',
    "lu": "x.float().lu()",
}
"""How a user calls an op whose name in torch's database is no function of torch's."""


def _call(op: str) -> str:
    """How a user calls the op: its name in torch's database, without the variant, where torch has it."""
    if op in _CALLS:
        return _CALLS[op]
    parts = op.split(".")
    for count in range(len(parts), 0, -1):
        found: Any = torch
        for part in parts[:count]:
            found = getattr(found, part, None)
        if callable(found):
            return ".".join(["torch", *parts[:count]]) + "(x.float())"
    return f"{op}(x.float())"


def look(backend: Backend, *, fresh: bool = False) -> Table:
    """What is recorded of this torch on a machine of this kind; else torch's op database is run, where it can be.

    Raises:
        UsageError: nothing is recorded of the device; or it is to be run (``fresh``) and cannot be.
    """
    record = low_precision.record_for(torch.__version__, backend.device_type)
    can_run = importlib.util.find_spec("expecttest") is not None
    if fresh and not can_run:
        raise UsageError("--fresh runs torch's op database, which needs expecttest: pip install 'amp-checks[opinfo]'")
    of_this_torch = record.torch == torch.__version__.partition("+")[0]
    of_this_machine = backend.emulated or (record.ran and record.machine == low_precision.machine())
    if not fresh and (not can_run or (of_this_torch and of_this_machine)):
        return Table(found=record, recorded=True)
    if not backend.emulated:
        sys.stderr.write(f"amp-checks: running torch's op database on {backend.device_type}: some minutes\n")
    return Table(found=sweep.run_here(backend.device_type, declared=backend.emulated), recorded=False)


def main(args: argparse.Namespace) -> int:
    """Print the table of each backend; always 0: a lack is no fault.

    Args:
        args: ``backend``: ids, the default ones in float16 where empty; ``json``: a file or ``-``, or None;
            ``fresh``: nothing that is recorded will do.

    Raises:
        UsageError: a backend is unknown, cannot run here, or nothing is recorded of its device.
    """
    chosen = output.chosen_backends(args)
    chosen = chosen if args.backend else tuple(backend for backend in chosen if backend.dtype == "float16")
    tables = {backend: look(backend, fresh=args.fresh) for backend in chosen}
    if any(table.recorded for table in tables.values()):
        sys.stderr.write("amp-checks: note: this is what was recorded; --fresh runs torch's op database (minutes)\n")
    text = "\n".join(line for backend, table in tables.items() for line in describe(backend, table))
    output.emit(args, document(tables), text)
    return 0


_PARTS: tuple[tuple[str, Callable[[Seen], bool]], ...] = (
    ("raise", lambda seen: bool(seen.lacks)),
    ("are silently wrong", lambda seen: _has(seen, Kind.WRONG)),
    ("run, though declared not to", lambda seen: seen.differs),
    ("compute in float32 in silence", lambda seen: _has(seen, Kind.FLOAT32)),
)


def _has(seen: Seen, kind: Kind) -> bool:
    return any(outcome is not None and outcome.kind is kind for outcome in (seen.forward, seen.backward))


def describe(backend: Backend, table: Table) -> list[str]:
    """The table as lines of text: what raises first, then what is wrong in silence, then the rest."""
    found = table.found
    how = f"recorded under torch {found.torch}" if table.recorded else f"looked at now, torch {found.torch}"
    where = f"run on {found.machine}" if found.ran and not backend.emulated else "declared, nothing was run on a device"
    title = f"{backend.dtype} on {backend.id}: {found.looked_at} ops of torch's database; {how}; {where}"
    head = f"{'op':<40}{'forward':<38}{'backward':<38}{'in a region':<21}remedy"
    lines = [title, head, "-" * len(head)]
    left = dict(found.ops[backend.dtype])
    for heading, belongs in _PARTS:
        rows = {name: seen for name, seen in left.items() if belongs(seen)}
        left = {name: seen for name, seen in left.items() if name not in rows}
        lines += [f"{len(rows)} {heading}:"] if rows else []
        lines += [_line(seen, backend) for seen in rows.values()]
    return [*lines, ""]


def _line(seen: Seen, backend: Backend) -> str:
    forward = _outcome(seen.forward, declared=seen.declared_forward)
    backward = _outcome(seen.backward, declared=seen.declared_backward, run=seen.verified)
    return f"{seen.op:<40}{forward:<38}{backward:<38}{seen.meets:<21}{remedy(seen, backend)}".rstrip()


def _outcome(outcome: Outcome | None, *, declared: bool | None, run: bool = False) -> str:
    """What was seen, and what is declared where that is all there is, or differs."""
    if outcome is None:
        return "-" if run or declared is None else f"declared: {'supports' if declared else 'raises'}"
    if declared is not None and (outcome.kind is not Kind.RAISES) != declared:
        return f"{outcome}; declared: {'supports' if declared else 'raises'}"
    return str(outcome)


def document(tables: dict[Backend, Table]) -> dict[str, Any]:
    """The tables as plain values."""
    return {
        "schema": SCHEMA,
        "version": 1,
        "torch": torch.__version__,
        "backends": {
            backend.id: {
                "recorded": table.recorded,
                "torch": table.found.torch,
                "machine": table.found.machine,
                "looked_at": table.found.looked_at,
                "ops": {name: _plain(seen, backend) for name, seen in table.found.ops[backend.dtype].items()},
            }
            for backend, table in tables.items()
        },
    }


def _plain(seen: Seen, backend: Backend) -> dict[str, Any]:
    how = "run" if seen.verified else "declared"
    return {**low_precision.to_json(seen), "how": how, "lacks": seen.lacks, "remedy": remedy(seen, backend)}
