"""Autocast and loss scaling off, whatever the program asks for."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from amp_checks.audit.runs.change import Change
from amp_checks.audit.watching.watch import Watch
from amp_checks.torch_api import private
from amp_checks.torch_api.patching import Patches


@dataclasses.dataclass(frozen=True, slots=True)
class AutocastOff(Change):
    """Every autocast region is disabled."""

    def around(self, watch: Watch) -> Patches:
        del watch

        def enter(original: Any) -> Any:
            def replacement(region: Any) -> Any:
                was = private.set_region_enabled(region, False)
                try:
                    return original(region)
                finally:
                    private.set_region_enabled(region, was)

            return replacement

        patches = Patches()
        patches.replace(torch.autocast, "__enter__", enter)
        return patches


@dataclasses.dataclass(frozen=True, slots=True)
class ScalerOff(Change):
    """Every scaler is disabled."""

    def around(self, watch: Watch) -> Patches:
        del watch

        def init(original: Any) -> Any:
            def replacement(scaler: Any, *args: Any, **kwargs: Any) -> None:
                original(scaler, *args[:5], **{**kwargs, "enabled": False})

            return replacement

        patches = Patches()
        patches.replace(torch.amp.GradScaler, "__init__", init)
        return patches
