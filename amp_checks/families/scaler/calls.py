"""Single calls: constructing a scaler, and what ``scale`` makes of its argument."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from amp_checks.core import Check, Finding, Raised, attempt
from amp_checks.families.scaler.oracle.program import INF, NAN, Settings, settings_of
from amp_checks.families.scaler.rows import CLASS, OBSERVED, SCALE, ScalerRow, error_text
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import dtype_name

Make = Callable[..., torch.Tensor]
"""``make(data, dtype=...)`` is `torch.tensor` on the backend's device."""

DEFAULTS = settings_of(Settings(init_scale=65536.0))
"""Item 1 of the documentation of `torch.amp.GradScaler`: its arguments and their defaults."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConstructCase(ScalerRow):
    """One construction.

    Attributes:
        settings: keyword arguments of the scaler.
        error: ``"AssertionError: ..."`` of the construction, or empty.
        first_scale_error: the same of the first ``scale`` of a tensor.
    """

    settings: tuple[tuple[str, float], ...] = ()
    error: str = ""
    first_scale_error: str = ""
    source: str = CLASS
    behaviours: tuple[int, ...] = (3,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutputsCase(ScalerRow):
    """One argument of ``scale``.

    Attributes:
        outputs: builds it.
        init_scale: of the scaler.
        expected: the result, as `describe` puts it, or ``"ValueError: ..."``.
        starts: whether the scaler has a scale tensor afterwards (it refuses ``update`` with another error if not).
        enabled: of the scaler.
    """

    outputs: Callable[[Make], Any]
    expected: str
    init_scale: float = 8.0
    starts: bool = True
    enabled: bool = True
    source: str = f"{SCALE}: a tensor or an iterable of tensors"
    behaviours: tuple[int, ...] = (9,)


_GROWTH = "AssertionError: The growth factor must be > 1.0."
_BACKOFF = "AssertionError: The backoff factor must be < 1.0."

CONSTRUCTIONS: tuple[ConstructCase, ...] = (
    ConstructCase(id="construct-defaults", behaviours=(1, 5)),
    *(
        ConstructCase(id=f"construct-growth-factor-{value:g}", settings=(("growth_factor", value),), error=_GROWTH)
        for value in (1.0, 0.5, -INF)
    ),
    *(
        ConstructCase(id=f"construct-backoff-factor-{value:g}", settings=(("backoff_factor", value),), error=_BACKOFF)
        for value in (1.0, 2.0, INF)
    ),
    ConstructCase(
        id="construct-both-factors-wrong",
        settings=(("growth_factor", 1.0), ("backoff_factor", 1.0)),
        error=_GROWTH,
        source=f"{OBSERVED}: the growth factor is looked at first",
    ),
    ConstructCase(
        id="construct-disabled-unchecked",
        settings=(("growth_factor", 0.5), ("backoff_factor", 2.0), ("enabled", False)),
        source=f"{OBSERVED}: a disabled scaler checks nothing",
        behaviours=(3, 43),
    ),
    *(
        ConstructCase(id=f"construct-{name}-{value:g}", settings=((name, value),), source=f"{OBSERVED}: accepted")
        for name, values in (
            ("growth_factor", (1.5, INF, NAN)),
            ("backoff_factor", (0.0, -1.0, 0.75)),
            ("init_scale", (0.0, -2.0, INF, 0.1)),
            ("growth_interval", (0, -1)),
        )
        for value in values
    ),
    ConstructCase(
        id="construct-init-scale-beyond-float32",
        settings=(("init_scale", 1e39),),
        first_scale_error="RuntimeError: value cannot be converted to type float without overflow",
        source=OBSERVED,
        behaviours=(4,),
    ),
)


class Pair(NamedTuple):
    """A named tuple of tensors."""

    first: torch.Tensor
    second: torch.Tensor


def _vector(dtype: str) -> Callable[[Make], torch.Tensor]:
    return lambda make: make([1, -2], dtype=getattr(torch, dtype))


def _scalar(dtype: str) -> Callable[[Make], torch.Tensor]:
    return lambda make: make(1, dtype=getattr(torch, dtype))


def _generator(make: Make) -> Iterator[torch.Tensor]:
    return (make(value) for value in (1.0, 2.0))


_container = functools.partial(OutputsCase, behaviours=(10,))
_unread = functools.partial(_container, expected="map", starts=False)
_refused = functools.partial(
    _container, expected="ValueError: outputs must be a Tensor or an iterable of Tensors", starts=False
)
_disabled = functools.partial(OutputsCase, expected="the same object", enabled=False, behaviours=(11,), source=CLASS)

OUTPUTS: tuple[OutputsCase, ...] = (
    *(
        OutputsCase(id=f"scale-{dtype}", outputs=_vector(dtype), expected=f"{dtype} [8.0, -16.0]")
        for dtype in ("float32", "float64", "bfloat16", "float16")
    ),
    *(
        OutputsCase(id=f"scale-{dtype}-scalar", outputs=_scalar(dtype), expected=f"{scaled} 8.0")
        for dtype, scaled in (
            ("float32", "float32"),
            ("float64", "float64"),
            ("float16", "float32"),
            ("bfloat16", "float32"),
            ("int64", "float32"),
        )
    ),
    OutputsCase(
        id="scale-float16-scalar-at-default-scale",
        outputs=_scalar("float16"),
        init_scale=65536.0,
        expected="float32 65536.0",
    ),
    OutputsCase(
        id="scale-float16-vector-at-default-scale",
        outputs=_vector("float16"),
        init_scale=65536.0,
        expected="float32 [65536.0, -131072.0]",
        source=f"{SCALE}, as for 0-dim losses: a finite loss stays finite",
    ),
    _container(
        id="scale-list",
        outputs=lambda make: [make(1.0), make([2.0], dtype=torch.float64)],
        expected="list(float32 8.0, float64 [16.0])",
    ),
    _container(
        id="scale-tuple",
        outputs=lambda make: (make(1.0), make([2.0], dtype=torch.float64)),
        expected="tuple(float32 8.0, float64 [16.0])",
    ),
    _container(
        id="scale-nested",
        outputs=lambda make: [(make(1.0), [make(2.0)]), make(3.0)],
        expected="list(tuple(float32 8.0, list(float32 16.0)), float32 24.0)",
    ),
    _container(id="scale-generator", outputs=_generator, expected="map(float32 8.0, float32 16.0)"),
    _unread(id="scale-unread-generator", outputs=_generator, source=f"{OBSERVED}: a generator is scaled as it is read"),
    _container(id="scale-empty-list", outputs=lambda _: [], expected="list()", starts=False),
    _container(
        id="scale-namedtuple",
        outputs=lambda make: Pair(make(1.0), make(2.0)),
        expected="Pair(float32 8.0, float32 16.0)",
        source=f"{SCALE}: tuple[Tensor, ...] -> tuple[Tensor, ...]",
    ),
    _unread(
        id="scale-string",
        outputs=lambda _: "loss",
        source=f"{OBSERVED}: a string is an iterable, read when it is read",
    ),
    _unread(
        id="scale-dict",
        outputs=lambda make: {"loss": make(1.0)},
        source=f"{OBSERVED}: a dict is an iterable of its keys, read when it is read",
    ),
    _refused(id="scale-number", outputs=lambda _: 1.0),
    _refused(id="scale-none", outputs=lambda _: None),
    _refused(id="scale-list-of-numbers", outputs=lambda _: [1.0, 2.0]),
    _disabled(id="scale-disabled", outputs=lambda make: [make(1.0)]),
    _disabled(id="scale-disabled-tensor", outputs=lambda make: make([1.0, 2.0])),
    _disabled(id="scale-disabled-float16-scalar", outputs=lambda make: make(1.0, dtype=torch.float16)),
    _disabled(id="scale-disabled-tuple", outputs=lambda make: (make(1.0), [make(2.0)])),
    _disabled(id="scale-disabled-generator", outputs=_generator),
    _disabled(id="scale-disabled-number", outputs=lambda _: 1.0),
)

ROWS: tuple[ConstructCase | OutputsCase, ...] = (*CONSTRUCTIONS, *OUTPUTS)


def checks_for(case: ConstructCase | OutputsCase) -> Iterator[Check]:
    if isinstance(case, ConstructCase):
        yield check_construction
        yield check_first_scale
    else:
        yield check_scaled_outputs
        yield check_outputs_start_scaler


def check_construction(case: ConstructCase, backend: Backend) -> Iterator[Finding]:
    """The construction raises the error of the row, or gives a scaler with what was asked for and the defaults."""
    error, scaler = "", None
    try:
        scaler = attempt("GradScaler(...)", functools.partial(backend.scaler, **dict(case.settings)))
    except Raised as raised:
        error = error_text(raised)
    yield case.exact("error of the construction", actual=error, expected=case.error)
    if error:
        return
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
        yield case.exact(name, actual=repr(seen), expected=repr(value))


def check_first_scale(case: ConstructCase, backend: Backend) -> Iterator[Finding]:
    """From the first ``scale`` on the scale is a float32 number; until then it is the number that was given."""
    try:
        scaler = backend.scaler(**dict(case.settings))
    except Exception as error:  # noqa: BLE001 - whether it must raise is the other check's to say
        yield case.exact("type of the error", actual=type(error).__name__, expected=case.error.split(":")[0])
        return
    wanted = {**DEFAULTS, **dict(case.settings)}
    error_of_scale, scaled = "", torch.empty(())
    try:
        scaled = attempt("scaler.scale", scaler.scale, torch.ones((), device=backend.device_type))
    except Raised as raised:
        error_of_scale = error_text(raised)
    yield case.exact("error of the first scale", actual=error_of_scale, expected=case.first_scale_error)
    if error_of_scale:
        return
    expected = torch.tensor(wanted["init_scale"] if wanted["enabled"] else 1.0, dtype=torch.float32).item()
    yield case.exact("scale", actual=repr(scaler.get_scale()), expected=repr(expected))
    yield case.exact("a loss of 1, scaled", actual=repr(scaled.item()), expected=repr(expected))


def check_scaled_outputs(case: OutputsCase, backend: Backend) -> Iterator[Finding]:
    """Types, dtypes and values of what ``scale`` returns, or its error."""
    for again in (False, True):
        subject = "scaler.scale(outputs), again" if again else "scaler.scale(outputs)"
        yield case.exact(subject, actual=_scaled(case, backend, again=again), expected=case.expected)


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
    return case.outputs(functools.partial(torch.tensor, device=backend.device_type))


def describe(result: Any, *, read: bool = True) -> str:
    """``list(float32 8.0, float64 [16.0])``; an iterator that is not to be read is named by its type alone."""
    if isinstance(result, torch.Tensor):
        return f"{dtype_name(result.dtype)} {result.tolist()}"
    name = type(result).__name__
    if not read and not isinstance(result, list | tuple):
        return name
    return f"{name}({', '.join(map(describe, result))})"


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
    yield case.exact("the scaler has a scale tensor", actual=started, expected=case.starts)
