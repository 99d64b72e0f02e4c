"""Imports that every run of a script makes, made once: a library takes longer to import than a step takes."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence

from amp_checks.torch_api.backend import Backend

_NOT_FORKED = frozenset({"tensorflow", "jax", "jaxlib", "grpc", "ray", "wandb"})
"""Packages whose import starts threads, which a forked process has not."""
_PACKAGES = "-packages"


def imported(before: Sequence[str]) -> list[str]:
    """The modules of installed packages that were imported since, in order, unless a package forbids it."""
    known, found = set(before), []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name not in known and _PACKAGES in file and name.partition(".")[0] not in _NOT_FORKED:
            found.append(name)
    return found


def import_all(names: Sequence[str], environment: dict[str, str], backend: Backend) -> None:
    """Import them here, where runs are forked from, as the program did: under its backend and its environment."""
    os.environ.update(environment)
    quiet = io.StringIO()
    with backend.activate(), contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        for name in names:
            with contextlib.suppress(Exception):  # then each run imports it
                importlib.import_module(name)
