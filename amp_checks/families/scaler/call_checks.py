"""Constructing a scaler, and what ``scale`` makes of its argument."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from amp_checks.core import Backend, Check, Finding, Raised, attempt, exact
from amp_checks.families.scaler.calls import ConstructCase, OutputsCase
from amp_checks.families.scaler.oracle.program import Settings, settings_of
from amp_checks.families.scaler.outputs import BUILDERS, describe
from amp_checks.families.scaler.stories.calls import error_text

DEFAULTS = settings_of(Settings(init_scale=65536.0))
"""Item 1 of the documentation of `torch.amp.GradScaler`: its arguments and their defaults."""


def checks_for(case: ConstructCase | OutputsCase) -> Iterator[Check]:
    if isinstance(case, ConstructCase):
        yield check_construction
        yield check_first_scale
    else:
        yield check_scaled_outputs
        yield check_outputs_start_scaler


def check_construction(case: ConstructCase, backend: Backend) -> Iterator[Finding]:
    """The construction raises the error of the row, or gives a scaler with what was asked for and the defaults."""
    try:
        scaler = attempt("GradScaler(...)", functools.partial(backend.scaler, **dict(case.settings)))
    except Raised as raised:
        yield exact("error of the construction", actual=error_text(raised), expected=case.error, why=case.source)
        return
    yield exact("error of the construction", actual="", expected=case.error, why=case.source)
    wanted = {**DEFAULTS, **dict(case.settings)}
    enabled = bool(wanted["enabled"])
    names = ("scale", "growth_factor", "backoff_factor", "growth_interval")
    entries = {name: wanted["init_scale" if name == "scale" else name] for name in names}
    expected: dict[str, object] = {
        "is_enabled()": enabled,
        "get_scale()": wanted["init_scale"] if enabled else 1.0,
        "state_dict()": {**entries, "_growth_tracker": 0} if enabled else {},
    }
    for name, value in expected.items():
        seen = attempt(name, getattr(scaler, name.removesuffix("()")))
        # As text: NaN, which may be asked for, equals NaN.
        yield exact(name, actual=repr(seen), expected=repr(value), why=case.source)


def check_first_scale(case: ConstructCase, backend: Backend) -> Iterator[Finding]:
    """From the first ``scale`` on the scale is a float32 number; until then it is the number that was given."""
    try:
        scaler = backend.scaler(**dict(case.settings))
    except Exception as error:  # noqa: BLE001 - whether it must raise is the other check's to say
        yield exact(
            "type of the error", actual=type(error).__name__, expected=case.error.split(":")[0], why=case.source
        )
        return
    loss = torch.ones((), device=backend.device_type)
    wanted = {**DEFAULTS, **dict(case.settings)}
    told = ""
    try:
        scaled = attempt("scaler.scale", scaler.scale, loss)
    except Raised as raised:
        told = error_text(raised)
    yield exact("error of the first scale", actual=told, expected=case.first_scale_error, why=case.source)
    if told:
        return
    expected = torch.tensor(wanted["init_scale"] if wanted["enabled"] else 1.0, dtype=torch.float32).item()
    yield exact("scale", actual=repr(scaler.get_scale()), expected=repr(expected), why=case.source)
    yield exact("a loss of 1, scaled", actual=repr(scaled.item()), expected=repr(expected), why=case.source)


def check_scaled_outputs(case: OutputsCase, backend: Backend) -> Iterator[Finding]:
    """Types, dtypes and values of what ``scale`` returns, or its error."""
    for again in (False, True):
        text = _scaled(case, backend, again=again)
        told = "scaler.scale(outputs), again" if again else "scaler.scale(outputs)"
        yield exact(told, actual=text, expected=case.expected, why=case.source)


def _scaled(case: OutputsCase, backend: Backend, *, again: bool) -> str:
    scaler = backend.scaler(init_scale=case.init_scale, enabled=case.enabled)
    outputs = _outputs(case, backend)
    try:
        if again:
            attempt("scaler.scale", scaler.scale, torch.ones((), device=backend.device_type))
        result = attempt("scaler.scale", scaler.scale, outputs)
        same = result is outputs
        return "the same object" if same else attempt("what scale returned", describe, result, read=case.starts)
    except Raised as raised:
        return error_text(raised)


def _outputs(case: OutputsCase, backend: Backend) -> Any:
    return BUILDERS[case.outputs](functools.partial(torch.tensor, device=backend.device_type))


def check_outputs_start_scaler(case: OutputsCase, backend: Backend) -> Iterator[Finding]:
    """The scale tensor is made when the first tensor is scaled, and not before: until then ``update`` refuses."""
    scaler = backend.scaler(init_scale=case.init_scale, enabled=case.enabled)
    try:
        result = attempt("scaler.scale", scaler.scale, _outputs(case, backend))
        if case.starts and case.enabled:
            attempt("what scale returned", describe, result)
        attempt("scaler.update", scaler.update, 2.0)
        started = True
    except Raised as raised:
        started = "_scale is None" not in str(raised.error) and raised.subject == "scaler.update"
    yield exact("the scaler has a scale tensor", actual=started, expected=case.starts, why=case.source)
