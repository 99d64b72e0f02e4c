"""Other people's scalers through the same checks: where do they differ from torch's own?

``python -m amp_checks.families.scaler.others torch.distributed.fsdp.sharded_grad_scaler:ShardedGradScaler --gloo``
prints each item whose verdict or failed findings are not those of `torch.amp.GradScaler` on the same backend.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amp_checks import backends
from amp_checks.core import Result, UsageError
from amp_checks.suite import collect
from amp_checks.suite.measure import measure
from amp_checks.torch_api.backend import Backend, GradScaler


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One item on which a scaler differs from torch's: the results of both."""

    theirs: Result
    torchs: Result

    @property
    def id(self) -> str:
        """Check and case, without the backend."""
        return f"{self.theirs.check}-{self.theirs.case}"

    def describe(self) -> str:
        """The findings that fail for one of the two only."""
        own = {(finding.subject, finding.actual) for finding in self.torchs.failures}
        new = [finding for finding in self.theirs.failures if (finding.subject, finding.actual) not in own]
        lines = [f"{self.id}: {self.theirs.status}, torch's: {self.torchs.status}"]
        return "\n".join(lines + [f"  {finding.describe()}" for finding in new[:3]])


def factory(path: str) -> GradScaler:
    """A factory from ``module:name``; one that takes no device is called without it.

    Raises:
        UsageError: there is no such module or name.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        message = f"{path!r} is no scaler: {error}; give it as package.module:ClassName"
        raise UsageError(message) from error
    if "device" in inspect.signature(found).parameters:
        return functools.partial(_with_device, found)
    return functools.partial(_without_device, found)


def _with_device(scaler: Any, device: str, /, **settings: Any) -> Any:
    return scaler(device=device, **settings)


def _without_device(scaler: Any, _: str, /, **settings: Any) -> Any:
    return scaler(**settings)


def differences(backend: Backend, grad_scaler: GradScaler, *, full: bool = False) -> list[Difference]:
    """Run every item of the scaler family on both scalers; give those that end differently."""
    theirs = dataclasses.replace(backend, grad_scaler=grad_scaler)
    found = []
    for item in collect.collect(backends=[backend], families=["scaler"], full=full):
        own = measure(item.check, item.case, backend)
        other = measure(item.check, item.case, theirs)
        if _essence(own) != _essence(other):
            found.append(Difference(theirs=other, torchs=own))
    return found


def _essence(result: Result) -> tuple[str, frozenset[tuple[str, str]]]:
    return result.status, frozenset((finding.subject, str(finding.actual)) for finding in result.failures)


@contextlib.contextmanager
def gloo() -> Iterator[None]:
    """A process group of this process alone, for scalers that ask the others."""
    import torch.distributed

    with tempfile.TemporaryDirectory() as folder:
        store = (Path(folder) / "store").as_uri()
        torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()


def main(arguments: list[str] | None = None) -> int:
    """Print the differences of one scaler; 0 where there are none, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scaler", help="package.module:ClassName")
    parser.add_argument("--backend", default="cpu-float16")
    parser.add_argument("--gloo", action="store_true", help="start a process group of one process")
    asked = parser.parse_args(arguments)
    with gloo() if asked.gloo else contextlib.nullcontext():
        found = differences(backends.backend(asked.backend), factory(asked.scaler))
    for difference in found:
        print(difference.describe())  # noqa: T201 - what this command is for
    print(f"{asked.scaler} differs from torch.amp.GradScaler in {len(found)} items on {asked.backend}")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
