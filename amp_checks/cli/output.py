"""What commands share: the arguments that many take, what they choose, and how a document leaves."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from amp_checks import backends
from amp_checks.core import UsageError, unknown
from amp_checks.families import FAMILIES
from amp_checks.report import files, values
from amp_checks.torch_api.backend import Backend


def add_backend(parser: argparse.ArgumentParser) -> None:
    """``--backend``, which `chosen_backends` reads."""
    parser.add_argument("--backend", action="append", default=[], metavar="ID", help="repeatable; see amp-checks env")


def add_family(parser: argparse.ArgumentParser) -> None:
    """``--family``, which `chosen_families` reads."""
    parser.add_argument("--family", action="append", default=[], metavar="F", help=", ".join(FAMILIES))


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """``--json``, which `emit` reads."""
    parser.add_argument("--json", metavar="FILE", help=f"write {what} there ('-': standard output)")


def chosen_backends(args: argparse.Namespace) -> tuple[Backend, ...]:
    """Those of ``--backend``, in the order of the table; the default ones where none is named.

    Raises:
        UsageError: one is unknown or cannot run here.
    """
    for name in args.backend:
        if (reason := backends.why_unavailable(name)) is not None:
            raise UsageError(f"backend {name} is not available: {reason}")
    return backends.resolve(args.backend)


def chosen_families(args: argparse.Namespace, known: Collection[str] = FAMILIES) -> list[str]:
    """Those of ``--family``, in the order of reports; all that are known where none is named.

    Raises:
        UsageError: one is unknown.
    """
    for name in args.family:
        if name not in known:
            raise unknown("family", name, known)
    return [name for name in known if name in args.family] or list(known)


def emit(args: argparse.Namespace, document: dict[str, Any], text: str) -> None:
    """Print the text and write the document where ``--json`` says; with ``--json -`` print the document alone."""
    if args.json == "-":
        sys.stdout.write(values.dumps(document))
        return
    sys.stdout.write(f"{text}\n")
    if args.json:
        files.write(Path(args.json), document)


def write(target: str | None, text: str) -> None:
    """Write the text to a file, or to standard output where that is None or ``-``."""
    if target in (None, "-"):
        sys.stdout.write(text)
    else:
        files.write_text(Path(target), text)


def open_streams() -> None:
    """Have a standard output and error that take whatever is written, wherever we were called."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever called us
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open while the process is
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Documents are UTF-8, whatever the locale; a terminal has its own encoding, and may lack a character.
        encoding = None if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")


def drop_stdout() -> None:
    """Discard buffered output that cannot be written: Python would try again at its end, and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
