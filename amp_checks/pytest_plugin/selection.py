"""What a run was asked for: backends, families and items, and whether they can be had."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from amp_checks import backends
from amp_checks.backends import environment
from amp_checks.core import SuiteError, UsageError, unknown
from amp_checks.families import FAMILIES
from amp_checks.suite import collect
from amp_checks.suite.item import Item
from amp_checks.torch_api.backend import Backend


def on_cuda(backend_id: str) -> bool:
    """Whether the backend of that id runs on a CUDA device."""
    return backend_id.startswith("cuda-")


def backend_of(name: str) -> str:
    """The backend that an item's id ends with; the longest, for ``cuda-float16`` ends ``emulated-cuda-float16`` too.

    Raises:
        UsageError: it ends with none.
    """
    found = [backend_id for backend_id in backends.IDS if name.endswith(f"-{backend_id}")]
    if not found:
        raise UsageError(f"unknown item {name!r}: an id ends with a backend ({', '.join(backends.IDS)})")
    return max(found, key=len)


class Selection:
    """The options of one run, and what they come to.

    The controller of parallel workers imports no torch for it: it asks another process about the environment.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.option = config.option
        self.is_worker = hasattr(config, "workerinput")
        self.is_controller = not self.is_worker and bool(getattr(self.option, "numprocesses", None))
        self.require_cuda: bool = self.option.amp_require_cuda

    def as_values(self) -> dict[str, Any]:
        """The part ``selection`` of a document."""
        return {
            "backends": [backend.id for backend in self.backends],
            "families": list(self.families),
            "full": self.option.amp_full,
            "items": list(self.option.amp_item),
            "plant": self.option.amp_plant,
            "require_cuda": self.require_cuda,
        }

    @functools.cached_property
    def environment(self) -> environment.Environment:
        return environment.describe_elsewhere() if self.is_controller else environment.describe()

    @functools.cached_property
    def backends(self) -> tuple[Backend, ...]:
        asked = self.option.amp_backend or [backend_of(name) for name in self.option.amp_item]
        if not asked:
            asked = backends.default_ids(require_cuda=self.require_cuda, why=self._why_unavailable)
        return backends.resolve(asked)

    def _why_unavailable(self, backend_id: str) -> str | None:
        """As `backends.why_unavailable`; the controller, which starts no CUDA, has asked another process."""
        if not self.is_controller:
            return backends.why_unavailable(backend_id)
        reason: str | None = self.environment["backends"][backend_id]
        return reason

    @property
    def families(self) -> Sequence[str]:
        asked: list[str] = self.option.amp_family
        for name in asked:
            if name not in FAMILIES:
                raise unknown("family", name, FAMILIES)
        return [name for name in FAMILIES if name in asked] or list(FAMILIES)

    @property
    def on_gpu(self) -> bool:
        """Whether this run uses a CUDA device; False where that cannot be said yet (`check` will)."""
        try:
            return self.require_cuda or any(on_cuda(backend.id) for backend in self.backends)
        except SuiteError:
            return False

    def items(self) -> list[Item]:
        """The items of this run, in order.

        Raises:
            UsageError: a backend, family or item is unknown.
        """
        wanted = self.option.amp_item
        if self.option.amp_plant:
            return self._planted()
        full = self.option.amp_full or bool(wanted)
        found = collect.collect_or_explain(backends=self.backends, families=self.families, full=full)
        known = {item.id for item in found}
        for name in wanted:
            if name not in known:
                raise self._why_not(name, known)
        return [item for item in found if not wanted or item.id in wanted]

    def _why_not(self, name: str, known: Iterable[str]) -> UsageError:
        """Why no item of that id is among those to run: others were asked for, or there is none."""
        its_own = backends.backend(backend_of(name))
        family = collect.family_of(name, its_own.id)
        if family != collect.NO_FAMILY:
            asked = "--backend" if its_own not in self.backends else "--family"
            return UsageError(f"{name} is an item of {family} on {its_own.id}, which {asked} leaves out")
        return unknown("item", name, known, listed_by="--collect-only")

    def _planted(self) -> list[Item]:
        """Every check on the case of a planted fault, with the fault in place: the red demonstration."""
        from amp_checks.suite import planting

        name = self.option.amp_plant
        mutant = planting.mutant(name)
        if self.option.amp_item or mutant.family not in self.families:
            raise UsageError(f"--plant {name} runs the checks of family {mutant.family} on its case: name no other")
        chosen = [backend for backend in self.backends if mutant.applies(backend)]
        found = collect.items_of([planting.case_of(mutant)], chosen)
        items = [dataclasses.replace(item, mutant=mutant) for item in found]
        if not items:
            raise UsageError(f"{name} is planted on none of {', '.join(backend.id for backend in self.backends)}")
        return items

    @property
    def planted(self) -> list[str]:
        """What a report says of a run with a planted fault: nothing such a run says is a verdict."""
        if not self.option.amp_plant:
            return []
        from amp_checks.suite import planting

        mutant = planting.mutant(self.option.amp_plant)
        return [f"a fault is planted on purpose (--plant {mutant.id}): {mutant.fault}"]

    def check(self) -> None:
        """Refuse what cannot give a verdict: unknown names, no CUDA for the gate, another torch.

        Raises:
            UsageError: one of these.
            SuiteError: a table is malformed.
        """
        for name in ("amp_plant", "amp_json", "amp_report_dir"):
            if getattr(self.option, name) == "":
                raise UsageError(f"--{name.replace('_', '-')} is given an empty name: is a variable unset?")
        _ = self.backends, self.families
        if self.option.amp_item or self.option.amp_plant:
            self.items()
        expected: str | None = self.option.amp_expect_torch
        found = self.environment["torch"]
        if expected and expected not in (found, found.partition("+")[0]):
            raise UsageError(
                f"expected torch {expected}, but torch {found} is installed in {self.environment['torch_path']}"
            )
        if self.require_cuda and not self.option.collectonly:
            cuda = [backend.id for backend in self.backends if on_cuda(backend.id)]
            if not cuda:
                raise UsageError("CUDA is required (--require-cuda), but no cuda backend is selected")
            for backend_id in cuda:
                if (reason := self.environment["backends"][backend_id]) is not None:
                    raise UsageError(f"CUDA is required (--require-cuda), but {backend_id} cannot run: {reason}")

    def header(self) -> list[str]:
        """Lines on the environment and the selection; none where it cannot be had, which `check` says."""
        try:
            chosen = ", ".join(backend.id for backend in self.backends)
            return [*environment.lines(self.environment), f"backends: {chosen}", *self.left_out()]
        except SuiteError:
            return []

    def left_out(self) -> list[str]:
        """What a run on CUDA does not cover, where the device cannot run it and nobody asked for it."""
        chosen = {backend.id for backend in self.backends}
        if not any(map(on_cuda, chosen)):
            return []
        missing = {name: self._why_unavailable(name) for name in backends.IDS if on_cuda(name) and name not in chosen}
        return [f"{name} is not run: {reason}" for name, reason in missing.items() if reason is not None]
