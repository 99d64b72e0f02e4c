"""``amp-checks policy --collectives``: what ranks send in one step, in which dtype and how many bytes, as observed."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import torch

from amp_checks import backends
from amp_checks.cli import output
from amp_checks.families.distributed.promises import collectives
from amp_checks.torch_api.backend import Backend

SCHEMA = "amp_checks/collectives"


def main(args: argparse.Namespace) -> int:
    """Print what rank 0 of two sends in a forward and backward pass of two layers; 1 where a dtype is not the expected.

    Args:
        args: ``backend``: ids, ``cpu-bfloat16`` where empty; ``json``: a file or ``-``, or None.
    """
    chosen = output.chosen_backends(args) if args.backend else [backends.backend("cpu-bfloat16")]
    found = {backend: {wrapper: _sent(wrapper, backend) for wrapper in collectives.WRAPPERS} for backend in chosen}
    output.emit(args, _document(found), "\n".join(_describe(found)))
    expected = {wrapper: list(dtypes) for wrapper, (_, dtypes) in collectives.WRAPPERS.items()}
    seen = (
        [(one.collective, one.dtype) for one in sent] == expected[wrapper]
        for own in found.values()
        for wrapper, sent in own.items()
    )
    return int(not all(seen))


def _sent(wrapper: str, backend: Backend) -> list[collectives.Sent]:
    with backend.activate():
        return collectives.floats(collectives.sent(wrapper, backend)[0])


def _describe(found: dict[Backend, dict[str, list[collectives.Sent]]]) -> list[str]:
    head = f"{'backend':<26}{'wrapper and policy':<28}{'collective':<16}{'dtype':<10}{'calls':>6}{'bytes':>7}"
    lines = [f"what rank 0 of 2 sends, torch {torch.__version__}, two layers of 4x4 weights", head, "-" * len(head)]
    for backend, own in found.items():
        for wrapper, sent in own.items():
            for one in sent:
                place = f"{backend.id:<26}{wrapper:<28}{one.collective:<16}"
                lines.append(f"{place}{one.dtype:<10}{one.count:>6}{one.bytes:>7}")
    return lines


def _document(found: dict[Backend, dict[str, list[collectives.Sent]]]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "version": 1,
        "torch": torch.__version__,
        "backends": {
            backend.id: {wrapper: [dataclasses.asdict(one) for one in sent] for wrapper, sent in own.items()}
            for backend, own in found.items()
        },
    }
