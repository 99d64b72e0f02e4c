"""Making a scaler, its other names, its getters and setters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from amp_checks.core import Finding, Raised, attempt, exact, recorded_warnings
from amp_checks.families.scaler.rows import CLASS
from amp_checks.families.scaler.stories.story import StoryCase, story
from amp_checks.torch_api.backend import Backend


@story("cuda-scaler-without-cuda", 2, source=f"{CLASS}: the text of its warning", real_device="cpu")
def check_cuda_scaler_without_cuda(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """A scaler for cuda: enabled where there is CUDA, else disabled with a warning, and none where it is disabled."""
    here = torch.cuda.is_available()
    kind = type(backend.scaler())

    def construct(enabled: bool) -> Any:
        """The line that the warning must name."""
        return kind("cuda", enabled=enabled)

    unnamed = attempt("GradScaler()", kind)
    subject = "a scaler of no named device is enabled"
    yield exact(subject, actual=unnamed.is_enabled(), expected=here, why="the default of device is cuda")
    for enabled in (True, False):
        with recorded_warnings() as caught:
            scaler = attempt("GradScaler('cuda')", construct, enabled)
        text = "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling."
        expected = text if enabled and not here else ""
        subject = f"of GradScaler('cuda', enabled={enabled})"
        texts = "; ".join(f"{entry.message}" for entry in caught)
        yield case.exact(f"warning {subject}", actual=texts, expected=expected)
        kinds = "; ".join(entry.category.__name__ for entry in caught)
        yield case.exact(f"kind of warning {subject}", actual=kinds, expected="UserWarning" if expected else "")
        blamed = all(entry.filename == __file__ for entry in caught)
        yield case.exact(f"warning {subject} blames its caller", actual=blamed, expected=True)
        yield case.exact(f"is_enabled {subject}", actual=scaler.is_enabled(), expected=enabled and here)
        if not here:
            yield case.exact(f"get_scale {subject}", actual=scaler.get_scale(), expected=1.0)
            yield case.exact(f"entries of the state {subject}", actual=len(scaler.state_dict()), expected=0)


@story("aliases", 7, source="torch.cuda.amp.GradScaler, torch.cpu.amp.GradScaler: deprecated")
def check_aliases(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Other names are the same class (``torch.GradScaler``), or warn (``torch.cuda.amp``, ``torch.cpu.amp``)."""
    module = sys.modules[type(backend.scaler()).__module__]
    names = ", ".join(getattr(module, "__all__", ()))
    yield case.exact("names that the module exports", actual=names, expected="OptState, GradScaler")
    same = torch.GradScaler is torch.amp.GradScaler
    yield case.exact("torch.GradScaler is torch.amp.GradScaler", actual=same, expected=True)
    for device, alias in (("cuda", torch.cuda.amp.GradScaler), ("cpu", vars(torch.cpu.amp)["GradScaler"])):
        name = f"torch.{device}.amp.GradScaler()"
        with recorded_warnings() as caught:
            scaler = attempt(name, alias, enabled=False)
        warned = FutureWarning in [entry.category for entry in caught]
        yield case.exact(f"{name} warns of its deprecation", actual=warned, expected=True)
        same = isinstance(scaler, torch.amp.GradScaler)
        yield case.exact(f"{name} is a torch.amp.GradScaler", actual=same, expected=True)


@story("disabled-getters", 6, source=f"{CLASS}: enabled=False makes other methods no-ops", variant="disabled")
@story("getters-and-setters", 1, 46, source=f"{CLASS}.get_growth_factor and its like", variant="enabled")
def check_getters(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Each getter gives what was constructed or set; each setter changes its own value and no other."""
    values: dict[str, float] = {"growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 7}
    enabled = case.variant == "enabled"
    scaler = backend.scaler(**values, enabled=enabled)
    for name, value in values.items():
        try:
            seen: Any = attempt(f"get_{name}", getattr(scaler, f"get_{name}"))
        except Raised as raised:
            seen = type(raised.error).__name__
        yield case.exact(f"get_{name}()", actual=seen, expected=value)
    if not enabled:
        return
    for name, new in (("growth_factor", 4.0), ("backoff_factor", 0.125), ("growth_interval", 3)):
        values[name] = new
        attempt(f"set_{name}", getattr(scaler, f"set_{name}"), new)
        for other, value in values.items():
            got = attempt(f"get_{other}", getattr(scaler, f"get_{other}"))
            yield case.exact(f"get_{other}() after set_{name}({new})", actual=got, expected=value)
            saved = scaler.state_dict()[other]
            yield case.exact(f"saved {other} after set_{name}({new})", actual=saved, expected=value)
