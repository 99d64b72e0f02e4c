"""Planted faults of the ops family, each with the checks that must catch it.

The faults of every single rule (removed, turned to another policy) are counted apart, in
`amp_checks.families.ops.mutants.every_rule`: there are thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from amp_checks.core import Backend, CastPolicy
from amp_checks.families.ops import sweep
from amp_checks.families.ops.mutants import faults, regions, variants
from amp_checks.families.ops.mutants.every_rule import break_every_rule
from amp_checks.records import cast_policy
from amp_checks.suite.planting import Mutant

ENTRY = "check_entry_dtype"
OUTPUT = "check_output_dtype"
VALUES = "check_matches_casting_by_hand"
ERROR = "check_error"
INPUTS = "check_inputs_unmodified"
GRADIENT_DTYPE = "check_gradient_dtype"
GRADIENT_VALUES = "check_gradient_matches_casting_by_hand"
GRADIENT_ERROR = "check_gradient_error"


def _where(op: str, *policies: CastPolicy) -> Any:
    def applies(backend: Backend) -> bool:
        return cast_policy.of(op, backend.device_type) in policies

    return applies


def _float16(backend: Backend) -> bool:
    return backend.dtype == "float16"


def _rule(name: str, op: str, rule: faults.Rule, fault: str, killed_by: Sequence[str], *policies: CastPolicy) -> Mutant:
    return Mutant(
        id=name,
        family="ops",
        fault=fault,
        plant=faults.with_rule(op, rule),
        case=op,
        killed_by=tuple(killed_by),
        applies=_where(op, *policies),
    )


_LOWER, _FP32, _PROMOTE = CastPolicy.LOWER_PRECISION_FP, CastPolicy.FP32, CastPolicy.PROMOTE

_APPEND, _SET, _BANNED = CastPolicy.FP32_APPEND_DTYPE, CastPolicy.FP32_SET_OPT_DTYPE, CastPolicy.BANNED

RULES = (
    _rule("rule-removed-mm", "mm", faults.removed, "mm has no rule", (ENTRY, OUTPUT, VALUES, GRADIENT_VALUES), _LOWER),
    _rule(
        "rule-removed-linear",
        "linear",
        faults.removed,
        "linear has no rule of its own; the addmm inside it has",
        (ENTRY,),
        _LOWER,
    ),
    _rule(
        "rule-turned-fp32-bmm",
        "bmm",
        faults.casting_to("bmm", faults.float32),
        "bmm runs in float32",
        (ENTRY, OUTPUT, VALUES, GRADIENT_VALUES),
        _LOWER,
    ),
    _rule(
        "rule-turned-low-mse_loss",
        "mse_loss",
        faults.casting_to("mse_loss", faults.low),
        "mse_loss runs in the low dtype",
        (ENTRY, OUTPUT, VALUES, ERROR, GRADIENT_VALUES, GRADIENT_ERROR),
        _FP32,
    ),
    _rule(
        "rule-removed-mse_loss",
        "mse_loss",
        faults.removed,
        "mse_loss runs in the dtype of its inputs",
        (ENTRY, OUTPUT, VALUES),
        _FP32,
    ),
    _rule(
        "rule-removed-softmax.int",
        "softmax.int",
        faults.removed,
        "softmax is not told to give float32",
        (ENTRY, OUTPUT, VALUES),
        _SET,
    ),
    _rule(
        "rule-removed-norm.Scalar",
        "norm.Scalar",
        faults.removed,
        "norm is not told to give float32",
        (ENTRY, OUTPUT, VALUES),
        _APPEND,
    ),
    _rule(
        "rule-turned-low-addcmul",
        "addcmul",
        faults.casting_to("addcmul", faults.low),
        "addcmul runs in the low dtype where one input is float32",
        (ENTRY, OUTPUT, VALUES, ERROR, GRADIENT_VALUES, GRADIENT_ERROR),
        _PROMOTE,
    ),
    _rule(
        "rule-turned-low-stack",
        "stack",
        faults.casting_to("stack", faults.low),
        "stack runs in the low dtype where one input is float32",
        (ENTRY, OUTPUT, VALUES, ERROR),
        _PROMOTE,
    ),
    _rule(
        "rule-added-reflection_pad1d",
        "reflection_pad1d",
        faults.casting_to("reflection_pad1d", faults.low),
        "an unlisted op runs in the low dtype",
        (ENTRY, OUTPUT, VALUES, ERROR, GRADIENT_VALUES, GRADIENT_ERROR),
        CastPolicy.UNLISTED,
    ),
)

RESULTS = (
    _rule(
        "result-widened",
        "mm",
        faults.lowering_then("mm", faults.widened),
        "mm runs in the low dtype and hands on float32",
        (OUTPUT,),
        _LOWER,
    ),
    _rule(
        "result-last-bit-off",
        "mm",
        faults.lowering_then("mm", faults.last_bit_off),
        "one value of mm inside a region is off by its last bit",
        (VALUES,),
        _LOWER,
    ),
    _rule(
        "input-changed",
        "mm",
        faults.lowering_then("mm", faults.first_input_doubled),
        "mm doubles its first input after use",
        (INPUTS,),
        _LOWER,
    ),
    _rule(
        "gradient-off",
        "mm",
        faults.lowering_then("mm", faults.gradient_off),
        "gradients through mm inside a region are two units of the last place too large",
        (GRADIENT_VALUES,),
        _LOWER,
    ),
)


def _kernel(name: str, op: str, spoil: Any, fault: str, killed_by: str, *, applies: Any) -> Mutant:
    return Mutant(
        id=name,
        family="ops",
        fault=fault,
        plant=faults.with_kernel(op, spoil),
        case="prelu",
        killed_by=(killed_by,),
        applies=applies,
    )


def _everywhere(_: Backend) -> bool:
    return True


KERNELS = (
    _kernel(
        "kernel-one-element-wrong",
        "_prelu_kernel",
        faults.one_element_wrong,
        "the 16-bit kernel gets one value a tenth too large",
        ERROR,
        applies=_everywhere,
    ),
    _kernel(
        "kernel-bfloat16-passed-off",
        "_prelu_kernel",
        faults.through_bfloat16,
        "the float16 kernel computes in bfloat16",
        ERROR,
        applies=_float16,
    ),
    _kernel(
        "gradient-kernel-one-element-wrong",
        "_prelu_kernel_backward",
        faults.one_element_wrong,
        "the 16-bit kernel of the backward pass gets one value a tenth too large",
        GRADIENT_ERROR,
        applies=_everywhere,
    ),
)


def _region(name: str, factory: Any, fault: str, killed_by: Sequence[str], applies: Any = _everywhere) -> Mutant:
    return Mutant(
        id=name,
        family="ops",
        fault=fault,
        plant=faults.with_autocast(factory),
        case="mm",
        killed_by=tuple(killed_by),
        applies=applies,
    )


def _ignored(_: Backend) -> Any:
    return lambda *_args, **_kwargs: nullcontext()


def _other_dtype(backend: Backend) -> Any:
    def region(device_type: str, **kwargs: Any) -> Any:
        return backend.autocast(device_type, **{**kwargs, "dtype": faults.other_low(backend)})

    return region


REGIONS = (
    _region("autocast-ignored", _ignored, "a region changes nothing", (ENTRY, OUTPUT, VALUES, GRADIENT_VALUES)),
    _region(
        "autocast-in-bfloat16",
        _other_dtype,
        "a float16 region runs in bfloat16",
        (ENTRY, OUTPUT, VALUES, ERROR, GRADIENT_VALUES),
        _float16,
    ),
    _region(
        "autocast-in-float16",
        _other_dtype,
        "a bfloat16 region runs in float16",
        (ENTRY, OUTPUT, VALUES, GRADIENT_VALUES),
        lambda backend: not _float16(backend),
    ),
    Mutant(
        id="gradients-stay-low",
        family="ops",
        fault="gradients of float32 leaves come back in the low dtype",
        plant=faults.low_gradients,
        case="mm",
        killed_by=(GRADIENT_DTYPE,),
    ),
)


def _elsewhere(
    name: str, op: str, rule: faults.Rule, fault: str, killer: tuple[str, str], *policies: CastPolicy
) -> Mutant:
    return Mutant(
        id=name,
        family="ops",
        fault=fault,
        plant=faults.with_rule(op, rule),
        case=killer[0],
        killed_by=(killer[1],),
        applies=_where(op, *policies),
    )


LISTS = (
    _elsewhere(
        "ban-lifted",
        "binary_cross_entropy",
        faults.removed,
        "binary_cross_entropy runs inside a region",
        ("binary_cross_entropy.banned", "check_banned_op_raises"),
        _BANNED,
    ),
    _elsewhere(
        "ban-reworded",
        "binary_cross_entropy",
        faults.refusing("not here"),
        "binary_cross_entropy raises without saying what to use",
        ("binary_cross_entropy.banned", "check_banned_op_raises"),
        _BANNED,
    ),
    _elsewhere(
        "rule-missing", "mm", faults.removed, "the rule of mm is gone", ("registrations", "check_registrations"), _LOWER
    ),
    _elsewhere(
        "rule-not-at-work",
        "linear",
        faults.removed,
        "linear reaches its kernel uncast; the addmm inside it is cast",
        ("rules", "check_every_rule"),
        _LOWER,
    ),
    _elsewhere(
        "rule-unknown",
        "tanh",
        faults.casting_to("tanh", faults.float32),
        "tanh has a rule that no row knows",
        ("registrations", "check_registrations"),
        CastPolicy.UNLISTED,
    ),
)


@contextmanager
def _tanh_lowered(backend: Backend) -> Iterator[Backend]:
    """Here, and in the process in which the op database is looked at."""
    rule = faults.with_rule("tanh", faults.casting_to("tanh", faults.low))
    with sweep.planted_in_sweeps("unlisted-op-lowered"), rule(backend) as faulty:
        yield faulty


DATABASE = (
    Mutant(
        id="unlisted-op-lowered",
        family="ops",
        fault="tanh, which has no rule, runs in the low dtype",
        plant=_tanh_lowered,
        case="op-database.sample",
        killed_by=("check_op_database",),
        full=True,
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *RULES,
    *RESULTS,
    *KERNELS,
    *REGIONS,
    *LISTS,
    *variants.MUTANTS,
    *regions.MUTANTS,
    *DATABASE,
)

BULK = (break_every_rule,)
"""More faults for the self-test: every rule of every device type."""
