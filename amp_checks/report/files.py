"""Reports as files: written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

from amp_checks.core import SuiteError, UsageError
from amp_checks.report.values import dumps

ODD = "backslashreplace"
"""What becomes of half a surrogate pair, as a file's name may hold: an escape that JSON knows."""


def write(path: Path, content: dict[str, Any]) -> None:
    """Write plain values as JSON, whole, or leave what was there.

    Raises:
        SuiteError: it cannot be written (no folder, no space, no permission).
    """
    write_text(path, dumps(content))


def write_text(path: Path, text: str) -> None:
    """As `write`, for the text of any format."""
    temporary = _beside(path)
    try:
        if path.exists() and not path.is_file():
            # A device or a pipe, /dev/stdout for one, is written to, not replaced.
            path.write_text(text, encoding="utf-8", errors=ODD)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8", errors=ODD)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise SuiteError(_cannot_write(path, error)) from error


def check_target(path: Path) -> None:
    """Try, before anything runs, whether `write` will be able to write there; its folder is made.

    Raises:
        UsageError: it will not.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return  # opening a pipe would wait for its reader
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beside(path)
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise UsageError(_cannot_write(path, error)) from error


def _beside(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    # Not tempfile: its files are for their owner alone, and a report is for whoever may read the folder.
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def _cannot_write(path: Path, error: OSError) -> str:
    reason: object = error.strerror or error
    if isinstance(error, FileExistsError | NotADirectoryError):
        reason = f"{next(parent for parent in path.parents if parent.exists())} is no folder"
    return f"the report {path} cannot be written: {reason}"


def check_version(name: object, schema: str, version: object, known: int) -> None:
    """Refuse a file whose layout is not the one that this amp_checks knows.

    Raises:
        UsageError: ``version``, which the file gives, is not ``known``.
    """
    if version == known:
        return
    newer = isinstance(version, int) and version > known
    remedy = "install the amp_checks that wrote it, or a newer one" if newer else "write it again"
    raise UsageError(
        f"{name} is of version {version!r} of {schema!r}, and this amp_checks reads version {known}: {remedy}"
    )
