"""Planted faults of the ops family, each with the checks that must catch it.

The faults of every single rule (removed, turned to another policy) are counted apart, in
`amp_checks.families.ops.mutants.every_rule`: there are thousands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from amp_checks.core import CastPolicy
from amp_checks.families.ops import sweep
from amp_checks.families.ops.mutants import faults, kernels, regions
from amp_checks.families.ops.mutants.every_edit import edit_every_node
from amp_checks.families.ops.mutants.every_rule import break_every_rule
from amp_checks.records import cast_policy
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api.backend import Backend

ENTRY = "check_entry_dtype"
OUTPUT = "check_output_dtype"
VALUES = "check_matches_casting_by_hand"
ERROR = "check_error"
INPUTS = "check_inputs_unmodified"
GRADIENT_DTYPE = "check_gradient_dtype"
GRADIENT_VALUES = "check_gradient_matches_casting_by_hand"
GRADIENT_ERROR = "check_gradient_error"

_FORWARD = (ENTRY, OUTPUT, VALUES)
_CAST = (*_FORWARD, GRADIENT_VALUES)
_LOST = (ENTRY, OUTPUT, VALUES, ERROR, GRADIENT_VALUES, GRADIENT_ERROR)
"""An op in the low dtype where float32 is due: what is lost shows against float64 as well."""

_LOWER, _FP32, _PROMOTE = CastPolicy.LOWER_PRECISION_FP, CastPolicy.FP32, CastPolicy.PROMOTE
_APPEND, _SET, _BANNED = CastPolicy.FP32_APPEND_DTYPE, CastPolicy.FP32_SET_OPT_DTYPE, CastPolicy.BANNED

_fault = functools.partial(Mutant, family="ops")


def _float16(backend: Backend) -> bool:
    return backend.dtype == "float16"


def _rule(
    name: str, op: str, rule: faults.Rule, fault: str, killed_by: tuple[str, ...], *policies: CastPolicy, case: str = ""
) -> Mutant:
    """A faulty rule of an op, tried on its row or on another ``case``, where it has one of the policies (none: all)."""

    def applies(backend: Backend) -> bool:
        return not policies or cast_policy.of(op, backend.device_type) in policies

    return _fault(
        id=name,
        fault=fault,
        plant=faults.with_rule(op, rule),
        case=case or op,
        killed_by=killed_by,
        applies=applies,
    )


def _to_low(op: str) -> faults.Rule:
    return faults.casting_to(op, faults.low)


def _mm(spoil: Callable[[Any, tuple[Any, ...]], Any]) -> faults.Rule:
    return faults.lowering_then("mm", spoil)


RULES = (
    _rule("rule-removed-mm", "mm", faults.removed, "mm has no rule", _CAST, _LOWER),
    _rule(
        "rule-removed-linear",
        "linear",
        faults.removed,
        "linear has no rule of its own; the addmm inside it has",
        (ENTRY,),
        _LOWER,
    ),
    _rule(
        "rule-turned-fp32-bmm", "bmm", faults.casting_to("bmm", faults.float32), "bmm runs in float32", _CAST, _LOWER
    ),
    _rule("rule-turned-low-mse_loss", "mse_loss", _to_low("mse_loss"), "mse_loss runs in the low dtype", _LOST, _FP32),
    _rule(
        "rule-removed-mse_loss", "mse_loss", faults.removed, "mse_loss runs in the dtype of its inputs", _FORWARD, _FP32
    ),
    _rule(
        "rule-removed-softmax.int",
        "softmax.int",
        faults.removed,
        "softmax is not asked for float32",
        (*_FORWARD, ERROR),
        _SET,
    ),
    _rule(
        "rule-removed-norm.Scalar",
        "norm.Scalar",
        faults.removed,
        "norm is not asked for float32",
        (*_FORWARD, ERROR),
        _APPEND,
    ),
    _rule(
        "rule-turned-low-addcmul",
        "addcmul",
        _to_low("addcmul"),
        "addcmul runs in the low dtype where one input is float32",
        _LOST,
        _PROMOTE,
    ),
    _rule(
        "rule-turned-low-stack",
        "stack",
        _to_low("stack"),
        "stack runs in the low dtype where one input is float32",
        (*_FORWARD, ERROR),
        _PROMOTE,
    ),
    _rule(
        "rule-added-reflection_pad1d",
        "reflection_pad1d",
        _to_low("reflection_pad1d"),
        "an unlisted op runs in the low dtype",
        _LOST,
        CastPolicy.UNLISTED,
    ),
)

RESULTS = (
    _rule(
        "result-widened", "mm", _mm(faults.widened), "mm runs in the low dtype and hands on float32", (OUTPUT,), _LOWER
    ),
    _rule(
        "result-last-bit-off",
        "mm",
        _mm(faults.last_bit_off),
        "one value of mm inside a region is off by its last bit",
        (VALUES,),
        _LOWER,
    ),
    _rule(
        "input-changed",
        "mm",
        _mm(faults.first_input_doubled),
        "mm doubles its first input after use",
        (INPUTS,),
        _LOWER,
    ),
    _rule(
        "gradient-off",
        "mm",
        _mm(faults.gradient_off),
        "gradients through mm inside a region are one unit of the last place too large",
        (GRADIENT_VALUES,),
        _LOWER,
    ),
)


def _ignored(_: Backend) -> Any:
    return lambda *_args, **_kwargs: nullcontext()


def _other_dtype(backend: Backend) -> Any:
    def region(device_type: str, **kwargs: Any) -> Any:
        return backend.autocast(device_type, **{**kwargs, "dtype": faults.other_low(backend)})

    return region


REGIONS = (
    _fault(
        id="autocast-ignored",
        fault="a region changes nothing",
        plant=faults.with_autocast(_ignored),
        case="mm",
        killed_by=_CAST,
    ),
    _fault(
        id="autocast-in-bfloat16",
        fault="a float16 region runs in bfloat16",
        plant=faults.with_autocast(_other_dtype),
        case="mm",
        killed_by=(*_FORWARD, ERROR, GRADIENT_VALUES, GRADIENT_ERROR),
        applies=_float16,
    ),
    _fault(
        id="autocast-in-float16",
        fault="a bfloat16 region runs in float16",
        plant=faults.with_autocast(_other_dtype),
        case="mm",
        killed_by=(*_CAST, ERROR, GRADIENT_ERROR),
        applies=lambda backend: not _float16(backend),
    ),
    _fault(
        id="gradients-stay-low",
        fault="gradients of float32 leaves come back in the low dtype",
        plant=faults.low_gradients,
        case="mm",
        killed_by=(GRADIENT_DTYPE,),
    ),
)

_BAN, _REGISTRATIONS = ("check_banned_op_raises",), ("check_registrations",)

LISTS = (
    _rule(
        "ban-lifted",
        "binary_cross_entropy",
        faults.removed,
        "binary_cross_entropy runs inside a region",
        _BAN,
        _BANNED,
        case="binary_cross_entropy.banned",
    ),
    _rule(
        "ban-reworded",
        "binary_cross_entropy",
        faults.refusing("not here"),
        "binary_cross_entropy raises without saying what to use",
        _BAN,
        _BANNED,
        case="binary_cross_entropy.banned",
    ),
    _rule("rule-missing", "mm", faults.removed, "the rule of mm is gone", _REGISTRATIONS, _LOWER, case="registrations"),
    _rule(
        "rule-not-at-work",
        "linear",
        faults.removed,
        "linear reaches its kernel uncast; the addmm inside it is cast",
        ("check_every_rule",),
        _LOWER,
        case="rules",
    ),
    _rule(
        "rule-unknown",
        "tanh",
        faults.casting_to("tanh", faults.float32),
        "tanh has a rule that no row knows",
        _REGISTRATIONS,
        CastPolicy.UNLISTED,
        case="registrations",
    ),
)

_WIDEST, _REFUSES = ("check_promotes_to_widest",), ("check_promotion_refuses_other_low_dtype",)

VARIANTS = (
    _rule(
        "float64-cast-too",
        "mm",
        faults.casting_float64_too("mm"),
        "mm lowers float64 inputs",
        ("check_every_dtype",),
        case="mm.dtypes",
    ),
    _fault(
        id="disabled-region-ignored",
        fault="a disabled region inside a region stays on",
        plant=faults.with_autocast(faults.never_disabled),
        case="mm.nesting",
        killed_by=("check_nested_regions",),
    ),
    _rule(
        "explicit-dtype-overridden",
        "prod",
        faults.forcing_float32("prod"),
        "prod gives float32 whatever dtype= says",
        ("check_explicit_dtype",),
        case="prod.dtype",
    ),
    *(
        _rule(
            f"promotion-to-narrowest-{op}",
            op,
            faults.promoting(op, widest=False),
            f"{op} of a float32 and a low input runs in the low dtype",
            _WIDEST,
            case=f"{op}.promotion",
        )
        for op in ("addcmul", "cat")
    ),
    *(
        _rule(
            f"promotion-takes-any-{op}",
            op,
            faults.promoting(op, refuses=False),
            f"{op} takes a 16-bit float that is not the region's",
            _REFUSES,
            case=f"{op}.promotion",
        )
        for op in ("addcmul", "cat")
    ),
    _rule(
        "out-form-cast",
        "mm.out",
        faults.casting_out_form("mm"),
        "mm(out=) computes in the low dtype",
        ("check_form_is_not_cast", "check_form_error"),
    ),
    _rule(
        "rule-missed-by-spelling",
        "mm",
        faults.removed,
        "torch.mm reaches no rule",
        ("check_spelling_is_cast",),
        case="torch.mm",
    ),
)


@contextmanager
def _tanh_lowered(backend: Backend) -> Iterator[Backend]:
    """Here, and in the process in which the op database is looked at."""
    with sweep.planted_in_sweeps("unlisted-op-lowered"), faults.with_rule("tanh", _to_low("tanh"))(backend) as faulty:
        yield faulty


DATABASE = _fault(
    id="unlisted-op-lowered",
    fault="tanh, which has no rule, runs in the low dtype",
    plant=_tanh_lowered,
    case="op-database.sample",
    killed_by=("check_op_database",),
    full=True,
)

MUTANTS: tuple[Mutant, ...] = (
    *(*RULES, *RESULTS, *REGIONS, *LISTS, *VARIANTS),
    *kernels.MUTANTS,
    *regions.MUTANTS,
    DATABASE,
)

BULK = (edit_every_node, break_every_rule)
"""More faults for the self-test: every edit of torch's code for autocast, every rule of every device type."""
