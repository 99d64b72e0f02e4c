"""Other ways to call the ops of the table: every dtype, nested regions, ``dtype=``, ``out=``, in place, as users write
them; and the check of each.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from amp_checks.core import CastPolicy, Check, Finding, exact
from amp_checks.families.ops import accuracy, explicit
from amp_checks.families.ops.entry import entries
from amp_checks.families.ops.explicit import Call
from amp_checks.families.ops.inputs import Plan
from amp_checks.families.ops.rows import OpCase
from amp_checks.families.ops.trial import Outcome, Trial, in_region, outcome, without_scratch
from amp_checks.records import cast_policy
from amp_checks.suite.row import Row
from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import LOW, dtype_name

REFUSED = "Unexpected floating ScalarType in at::autocast::prioritize"
"""How ``promote`` refuses a 16-bit float other than the region's."""

PLANS = (
    *(Plan.OTHER, Plan.FLOAT64, Plan.INT64, Plan.COMPLEX64),
    *(Plan.FLOAT32_FIRST, Plan.LOW_OTHER, Plan.DOUBLE_FIRST),
)
"""The dtype plans that `amp_checks.families.ops.checks` leaves to `DtypesCase`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Variant(Row):
    """A row of the table called in another way."""

    family: ClassVar[str] = "ops"
    suffix: ClassVar[str] = ""

    op: OpCase

    @property
    def id(self) -> str:
        return f"{self.op.id}.{self.suffix}"

    def runs_on(self, backend: Backend) -> bool:
        return self.op.runs_on(backend)


class DtypesCase(Variant):
    """The op over every dtype plan: 64-bit, whole-number and complex inputs, and mixed ones."""

    suffix = "dtypes"


class NestingCase(Variant):
    """The op with autocast on, off inside on, and on inside off inside on."""

    suffix = "nesting"


class ExplicitDtypeCase(Variant):
    """The op with a ``dtype=`` of the user's."""

    suffix = "dtype"


class PromotionCase(Variant):
    """The op over pairs of dtypes, where its rule promotes."""

    suffix = "promotion"

    def runs_on(self, backend: Backend) -> bool:
        return self.op.runs_on(backend) and cast_policy.of(self.op.id, backend.device_type) is CastPolicy.PROMOTE


NOT_EMULATED = frozenset(
    "matmul.out linalg_matrix_rank.out linalg_matrix_rank.out_tol_tensor multilabel_margin_loss.out".split()
)
"""Forms that the emulation cannot run: emulated tensors have no memory of their own, so that torch takes them to
overlap, or writes nothing to ``out``.
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UncastFormCase(Variant):
    """The ``out=`` or the in-place form of a listed op, which autocast does not cast; ``form`` is the overload."""

    form: str

    @property
    def id(self) -> str:
        return self.form

    @property
    def in_place(self) -> bool:
        return self.form.partition(".")[0].endswith("_")

    def runs_on(self, backend: Backend) -> bool:
        if backend.emulated and self.form in NOT_EMULATED:
            return False
        return self.op.runs_on(backend) and cast_policy.exists(self.form)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SpellingCase(Variant):
    """An op as users write it; ``path`` is an importable callable, called with ``args`` (the row's own where None)."""

    path: str
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.path

    @property
    def row(self) -> OpCase:
        """The row of the op with the arguments of this spelling."""
        if self.args is None and not self.kwargs:
            return self.op
        args = self.op.args if self.args is None else self.args
        return dataclasses.replace(self.op, args=args, kwargs=self.kwargs or self.op.kwargs)


def takes_dtype(row: OpCase) -> bool:
    """Whether the op has a ``dtype`` of its own to give (no row gives one)."""
    return _argument(row.id, "dtype") and not row.call


def promotes_somewhere(row: OpCase) -> bool:
    """Whether some device type of some recorded torch promotes the op."""
    tables = cast_policy.recorded().values()
    return any(rules.get(row.id) is CastPolicy.PROMOTE for table in tables for rules in table.rules.values())


def _overload(name: str) -> Any:
    base, _, suffix = name.partition(".")
    return getattr(getattr(torch.ops.aten, base, None), suffix or "default", None)


def _argument(name: str, argument: str) -> bool:
    found = _overload(name)
    return found is not None and argument in private.argument_names(found)


def uncast_forms(row: OpCase) -> tuple[str, ...]:
    """The ``out=`` and in-place overloads that take the row's own arguments, found among torch's overloads."""
    found = _overload(row.id)
    if found is None or row.call:
        return ()
    base = row.id.partition(".")[0]
    forms = []
    for name in (base, f"{base}_"):
        packet = getattr(torch.ops.aten, name, None)
        for suffix in packet.overloads() if packet is not None else ():
            taken = _signature(getattr(packet, suffix))
            out = [argument for argument in taken if argument[0] == "out"]
            if (name != base or out == [("out", "Tensor")]) and [a for a in taken if a not in out] == _signature(found):
                forms.append(name if suffix == "default" else f"{name}.{suffix}")
    return tuple(forms)


def _signature(found: Any) -> list[tuple[str, str]]:
    return list(zip(private.argument_names(found), private.argument_types(found), strict=True))


def checks_for(case: Variant) -> Iterator[Check]:
    match case:
        case DtypesCase():
            yield check_every_dtype
        case NestingCase():
            yield check_nested_regions
        case ExplicitDtypeCase():
            yield check_explicit_dtype
        case PromotionCase():
            yield check_promotes_to_widest
            yield check_promotion_refuses_other_low_dtype
        case UncastFormCase():
            yield check_form_is_not_cast
            yield check_form_error
        case SpellingCase():
            yield check_spelling_is_cast
            yield check_spelling_error


def check_every_dtype(case: DtypesCase, backend: Backend) -> Iterator[Finding]:
    """Over every dtype plan, the op receives what its policy says and gives what it gives with explicit casts."""
    for plan in PLANS:
        trial = Trial(case.op, backend, plan)
        if _refuses(trial) or not trial.comparable:
            continue
        if trial.without.error is not None:
            yield trial.same_error(f"{plan}: outcome")
            continue
        yield exact(f"{plan}: output dtypes", actual=trial.got.in_words, expected=trial.without.in_words, why=trial.why)
        yield from trial.same_values(str(plan))


def _refuses(trial: Trial) -> bool:
    """Whether the op's rule promotes and finds a 16-bit float that is not the region's."""
    lows = set(trial.call.dtypes) & set(LOW)
    return trial.policy is CastPolicy.PROMOTE and bool(lows - {trial.backend.low_dtype})


def check_nested_regions(case: NestingCase, backend: Backend) -> Iterator[Finding]:
    """The rule holds inside a region, not in a disabled one inside it, and again in an enabled one inside that."""

    def here() -> str:
        return without_scratch(case.op, outcome(Call.of(case.op, backend).run)).in_words

    plain, cast = here(), Trial(case.op, backend).without.in_words
    with backend.region():
        on = here()
        with backend.region(enabled=False):
            off_inside = here()
            with backend.region():
                on_inside_off = here()
            off_again = here()
        on_again = here()
    for name, got, expected in (
        ("on", on, cast),
        ("off inside on", off_inside, plain),
        ("on inside off inside on", on_inside_off, cast),
        ("off again", off_again, plain),
        ("on again", on_again, cast),
        ("outside again", here(), plain),
    ):
        yield exact(
            f"{name}: output dtypes",
            actual=got,
            expected=expected,
            why="nesting of regions, torch.autocast documentation",
        )


def check_explicit_dtype(case: ExplicitDtypeCase, backend: Backend) -> Iterator[Finding]:
    """A ``dtype=`` that the user gives is the one that the op gets and returns; autocast does not override it."""
    for wanted in (backend.low_dtype, torch.float32, torch.float64):
        for plan in (Plan.FLOAT32, Plan.LOW):
            trial = Trial(case.op, backend, plan, given={"dtype": wanted})
            if not trial.comparable:
                continue
            subject = f"{plan}: dtype={dtype_name(wanted)}"
            if trial.without.error is not None:
                yield trial.same_error(f"{subject}: outcome")
                continue
            yield exact(
                f"{subject}: output dtype",
                actual=trial.got.in_words,
                expected=dtype_name(wanted),
                why="an explicit dtype= is respected, torch.amp documentation",
            )
            yield from trial.same_values(subject)


def check_promotes_to_widest(case: PromotionCase, backend: Backend) -> Iterator[Finding]:
    """Any float32 input: all run in float32; only low ones: in the low dtype; float64 is no part of the rule."""
    for plan in (Plan.FLOAT32, Plan.LOW, Plan.LOW_FIRST, Plan.FLOAT32_FIRST, Plan.DOUBLE_FIRST, Plan.INT64):
        yield from Trial(case.op, backend, plan).at_entry(stop=True)


def check_promotion_refuses_other_low_dtype(case: PromotionCase, backend: Backend) -> Iterator[Finding]:
    """``promote`` raises on a 16-bit float other than the region's, and says so."""
    for plan in (Plan.OTHER, Plan.LOW_OTHER):
        got = in_region(Call.of(case.op, backend, plan), backend)
        yield exact(
            f"{plan}: outcome",
            actual="refused" if REFUSED in (got.error or "") else got.in_words,
            expected="refused",
            why=f"{Trial(case.op, backend).why}: {REFUSED}",
        )


def check_form_is_not_cast(case: UncastFormCase, backend: Backend) -> Iterator[Finding]:
    """``out=`` and in-place forms run in the dtypes they are given: inside a region as outside one."""
    for plan in (Plan.FLOAT32, Plan.LOW):
        forms = _FormTrial(case.op, backend, plan, form=case)
        prefix = "" if plan is Plan.FLOAT32 else f"{plan}: "
        if not forms.comparable:
            continue
        if forms.without.error is not None:
            yield forms.same_error(f"{prefix}outcome")
            continue
        yield exact(
            f"{prefix}output dtypes",
            actual=forms.got.in_words,
            expected=forms.without.in_words,
            why="out= and in-place forms are not autocast, torch.amp documentation",
        )
        yield from forms.same_values(f"{prefix}out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FormTrial(Trial):
    """The ``out=`` or in-place ``form`` of an op, inside a region and outside of all."""

    form: UncastFormCase

    @property
    def policy(self) -> CastPolicy:
        return CastPolicy.UNLISTED

    @functools.cached_property
    def without(self) -> Outcome:
        return outcome(self._call().run)

    def _reference_call(self) -> Call:
        return super()._call()

    def _call(self) -> Call:
        call = super()._call()
        if not self.form.in_place:
            shaped = outcome(super()._call().run).tensors
            out = {"out": torch.zeros_like(shaped[0]).detach()} if shaped else {}
            call = dataclasses.replace(call, kwargs={**call.kwargs, **out})
        return dataclasses.replace(call, name=self.form.form)


def check_form_error(case: UncastFormCase, backend: Backend) -> Iterator[Finding]:
    """``out=`` and in-place forms are as near to float64 as the dtype of their inputs allows; units as of `error`.

    That they run is `check_form_is_not_cast`'s.
    """
    yield from accuracy.against_float64(
        lambda plan, drawn: _FormTrial(case.op, backend, plan, drawn=drawn, form=case), "out", outcomes=False
    )


def check_spelling_is_cast(case: SpellingCase, backend: Backend) -> Iterator[Finding]:
    """Written as users write it, the op reaches the rule of its overload: dtypes at the entry and of the outputs."""
    trial = _SpellingTrial(case.row, backend, path=case.path)
    with entries(case.op.enters or case.op.id) as seen:
        got = trial.got
    yield exact(
        f"{case.op.id} reached",
        actual="yes" if seen else f"no ({got.error or 'no exception'})",
        expected="yes",
        why=f"{case.path} is {case.op.id}",
    )
    floats = [name for name in (seen[0].dtypes if seen else ()) if name in ("float16", "bfloat16", "float32")]
    target = explicit.target_dtype(trial.policy, [torch.float32], backend.low_dtype) or torch.float32
    yield exact(
        "dtypes at its entry", actual=", ".join(sorted(set(floats))), expected=dtype_name(target), why=trial.why
    )
    ran_in = explicit.run_dtype(trial.policy, [torch.float32], backend.low_dtype) or torch.float32
    yield exact(
        "output dtypes", actual=got.in_words, expected=", ".join(explicit.output_names(case.op, ran_in)), why=trial.why
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SpellingTrial(Trial):
    """An op as users write it: the callable of that ``path``, inside a region and outside of all."""

    path: str

    @functools.cached_property
    def without(self) -> Outcome:
        return outcome(self._call().run)

    def _call(self) -> Call:
        return dataclasses.replace(super()._call(), function=explicit.resolved(self.path))


def check_spelling_error(case: SpellingCase, backend: Backend) -> Iterator[Finding]:
    """As users write it, the op is as near to float64 as the dtype in which it runs allows; units as of `error`."""
    yield from accuracy.against_float64(
        lambda plan, drawn: _SpellingTrial(case.row, backend, plan, drawn=drawn, path=case.path), "output"
    )
