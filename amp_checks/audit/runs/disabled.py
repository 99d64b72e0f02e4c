"""Autocast and loss scaling off, whatever the program asks for."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch

from amp_checks.audit.runs.change import Change
from amp_checks.audit.watching.state import around
from amp_checks.audit.watching.watch import Watch
from amp_checks.torch_api import private
from amp_checks.torch_api.patching import Patches


@dataclasses.dataclass(frozen=True, slots=True)
class AutocastOff(Change):
    """Every autocast region is disabled."""

    words: ClassVar[str] = "autocast off"

    def around(self, watch: Watch) -> Patches:
        del watch
        patches = Patches()
        patches.replace(torch.autocast, "__enter__", around(_enter_disabled))
        return patches


def _enter_disabled(original: Any, region: Any) -> Any:
    was = private.set_region_enabled(region, False)
    try:
        return original(region)
    finally:
        private.set_region_enabled(region, was)


@dataclasses.dataclass(frozen=True, slots=True)
class ScalerOff(Change):
    """Every scaler is disabled."""

    words: ClassVar[str] = "no loss scaling"

    def around(self, watch: Watch) -> Patches:
        del watch
        patches = Patches()
        patches.replace(torch.amp.GradScaler, "__init__", around(_make_disabled))
        return patches


def _make_disabled(original: Any, scaler: Any, *args: Any, **kwargs: Any) -> None:
    original(scaler, *args[:5], **{**kwargs, "enabled": False})
