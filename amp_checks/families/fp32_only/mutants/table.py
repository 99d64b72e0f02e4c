"""Planted faults around ops that must run in FP32, and the checks that notice each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from amp_checks.families.fp32_only import checks, record
from amp_checks.families.fp32_only import remedies as fp32_only_remedies
from amp_checks.families.fp32_only.mutants import faults, remedies
from amp_checks.families.ranges import mutants
from amp_checks.records import low_precision
from amp_checks.suite.planting import Mutant
from amp_checks.torch_api.backend import Backend

CASE = "linalg.inv"
OP = torch.linalg.inv


_VALUE_CHECKS = (
    "check_forced_fp32_output",
    "check_forced_fp32_accuracy",
    "check_forced_fp32_gradient",
    "check_forced_fp32_in_other_ways",
)
_ALL_REMEDY_CHECKS = (*_VALUE_CHECKS, "check_region_comes_back")


def _real(backend: Backend) -> bool:
    return not backend.emulated


def _emulated(backend: Backend) -> bool:
    return backend.emulated


@contextmanager
def _undeclared(backend: Backend) -> Iterator[Backend]:
    with mock.patch.object(checks, "declaration", return_value="supported"):
        yield backend


@contextmanager
def _unrecorded(backend: Backend) -> Iterator[Backend]:
    """The record has lost an op: the tables hold it, and nothing says why."""
    found = low_precision.record_for(torch.__version__, backend.device_type)
    lost = {dtype: {name: seen for name, seen in ops.items() if name != CASE} for dtype, ops in found.ops.items()}
    everything = {found.torch: {backend.device_type: dataclasses.replace(found, ops=lost)}}
    with mock.patch.object(low_precision, "recorded", return_value=everything):
        yield backend


@contextmanager
def _lack_is_gone(backend: Backend) -> Iterator[Backend]:
    """Run again, an op that is recorded to lack 16 bits has them."""
    found = low_precision.record_for(torch.__version__, backend.device_type)
    now = {dtype: {name: seen for name, seen in ops.items() if name != CASE} for dtype, ops in found.ops.items()}
    with mock.patch.object(record, "run_again", return_value=dataclasses.replace(found, ops=now)):
        yield backend


@contextmanager
def _newly_unsupported(backend: Backend) -> Iterator[Backend]:
    """The record names one more op without 16 bits."""
    found = low_precision.record_for(torch.__version__, backend.device_type)
    more = {dtype: {**ops, "new_op": dataclasses.replace(ops[CASE], op="new_op")} for dtype, ops in found.ops.items()}
    with mock.patch.object(low_precision, "record_for", return_value=dataclasses.replace(found, ops=more)):
        yield backend


@contextmanager
def _without_rule(backend: Backend) -> Iterator[Backend]:
    """Autocast's own rule for the op is gone."""
    rule = torch.library.Library("aten", "IMPL")
    key = f"Autocast{backend.device_type.upper()}"
    rule.impl("quantile.scalar", torch.library.fallthrough_kernel, key)
    try:
        yield backend
    finally:
        rule._destroy()  # noqa: SLF001 - the only way to take it back


@contextmanager
def _custom_fwd_casts_nothing(backend: Backend) -> Iterator[Backend]:
    plain = torch.amp.custom_fwd

    def careless(*, device_type: str, cast_inputs: torch.dtype) -> Any:
        del cast_inputs
        return plain(device_type=device_type)

    with mock.patch.object(torch.amp, "custom_fwd", careless):
        yield backend


@contextmanager
def _way_left(backend: Backend) -> Iterator[Backend]:
    """A decorated function leaves autocast off for what comes after it."""
    right = fp32_only_remedies.decorated

    def leaves_off(backend: Backend, op: Any, *tensors: torch.Tensor) -> Any:
        out = right(backend, op, *tensors)
        torch.set_autocast_enabled(backend.device_type, False)
        return out

    with mock.patch.dict(fp32_only_remedies.OTHER_WAYS, {"decorator": leaves_off}):
        yield backend


def _cpu(backend: Backend) -> bool:
    return backend.device_type == "cpu" and not backend.emulated


_fault = functools.partial(Mutant, family="fp32-only", case=CASE)

MUTANTS: tuple[Mutant, ...] = (
    _fault(
        id="low-precision-call-accepted",
        fault="a 16-bit call is computed in float32 in silence",
        plant=faults.everywhere(OP, faults.computes_in_float32),
        killed_by=("check_low_precision_call_raises", "check_low_precision_input_in_region"),
        applies=_real,
    ),
    _fault(
        id="low-precision-support-declared",
        fault="the record of declarations says that the op runs in 16 bits",
        plant=_undeclared,
        killed_by=("check_low_precision_call_raises",),
        applies=_emulated,
    ),
    _fault(
        id="forced-fp32-gives-float64",
        fault="the op gives float64 inside the disabled region",
        plant=faults.in_disabled_regions(OP, faults.computes_in_float64),
        killed_by=("check_forced_fp32_output", "check_forced_fp32_in_other_ways"),
    ),
    _fault(
        id="forced-fp32-result-rounded",
        fault="the result goes through bfloat16 inside the disabled region",
        plant=faults.in_disabled_regions(OP, faults.result_rounded),
        killed_by=_VALUE_CHECKS,
    ),
    _fault(
        id="fp32-kernel-keeps-eleven-bits",
        fault="the float32 kernel keeps only as many bits as TF32, with and without AMP",
        plant=faults.everywhere(OP, faults.keeps_eleven_bits),
        killed_by=("check_forced_fp32_accuracy",),
    ),
    _fault(
        id="float-detaches",
        fault="float() inside the disabled region cuts the gradient",
        plant=faults.in_disabled_regions(torch.Tensor.float, faults.detaches),
        killed_by=("check_forced_fp32_gradient", "check_forced_fp32_in_other_ways"),
    ),
    _fault(
        id="gradient-of-float-halved",
        fault="the gradient of float() inside the disabled region is half of what it should be",
        plant=faults.in_disabled_regions(torch.Tensor.float, faults.halves_gradient),
        killed_by=("check_forced_fp32_gradient", "check_forced_fp32_in_other_ways"),
    ),
    _fault(
        id="disabled-region-stays-enabled",
        fault="enabled=False is ignored",
        plant=faults.regions(faults.stays_enabled),
        killed_by=("check_region_comes_back",),
    ),
    _fault(
        id="disabled-region-leaks",
        fault="autocast stays off after a disabled region",
        plant=faults.regions(faults.leaks),
        killed_by=("check_forced_fp32_in_other_ways", "check_region_comes_back"),
    ),
    _fault(
        id="remedy-float-in-the-enabled-region",
        fault="float() without a disabled region, for an op that autocast lowers",
        plant=remedies.planted(remedies.float_in_enabled_region),
        case="mm",
        killed_by=_ALL_REMEDY_CHECKS,
    ),
    _fault(
        id="remedy-no-cast",
        fault="a disabled region without the cast",
        plant=remedies.planted(remedies.no_cast),
        case="mm",
        killed_by=_VALUE_CHECKS,
    ),
    _fault(
        id="remedy-no-cast-raises",
        fault="a disabled region without the cast, for an op that has no 16 bits",
        plant=remedies.planted(remedies.no_cast),
        killed_by=_ALL_REMEDY_CHECKS,
        applies=_real,
        crashes=True,
    ),
    _fault(
        id="remedy-result-cast",
        fault="the result is cast instead of the input",
        plant=remedies.planted(remedies.result_cast),
        case="mm",
        killed_by=_VALUE_CHECKS,
    ),
    _fault(
        id="remedy-low-on-the-way-in",
        fault="an FP32 input goes through the low dtype before it is cast",
        plant=remedies.planted(remedies.low_on_the_way_in),
        killed_by=("check_forced_fp32_output",),
    ),
    _fault(
        id="custom-fwd-casts-nothing",
        fault="custom_fwd ignores cast_inputs",
        plant=_custom_fwd_casts_nothing,
        case="mm",
        killed_by=("check_forced_fp32_in_other_ways",),
    ),
    _fault(
        id="decorator-leaves-autocast-off",
        fault="a decorated function leaves autocast off",
        plant=_way_left,
        killed_by=("check_forced_fp32_in_other_ways",),
    ),
    _fault(
        id="compiled-kernel-rounded",
        fault="the compiled op's result goes through bfloat16",
        plant=faults.in_disabled_regions(torch.quantile, faults.result_rounded),
        case="quantile.compiled",
        killed_by=("check_forced_fp32_compiled",),
        applies=_cpu,
        full=True,
    ),
    _fault(
        id="rule-of-unsupported-op-removed",
        fault="autocast has lost the rule that casts an op's input up",
        plant=_without_rule,
        case="quantile",
        killed_by=("check_low_precision_input_in_region",),
        applies=_cpu,
    ),
    _fault(
        id="unsupported-op-without-row",
        fault="one more op is recorded to lack 16 bits",
        plant=_newly_unsupported,
        case="record",
        killed_by=("check_every_unsupported_op_has_a_row",),
    ),
    _fault(
        id="row-without-record",
        fault="no record says that an op of the tables lacks 16 bits",
        plant=_unrecorded,
        case="record",
        killed_by=("check_every_row_is_unsupported_somewhere",),
    ),
    _fault(
        id="recorded-lack-is-gone",
        fault="an op that is recorded to lack 16 bits runs in them now",
        plant=_lack_is_gone,
        case="record-of-three-run-again",
        killed_by=("check_record_holds",),
        applies=_cpu,
        full=True,
    ),
    _fault(
        id="value-off-in-a-region",
        fault="interpolate gives values 5 % too large inside a region",
        plant=faults.everywhere(functional.interpolate, faults.five_percent_off(in_region=True)),
        case="value.interpolate.bilinear.2d",
        killed_by=("check_value_in_region",),
        applies=_cpu,
    ),
    _fault(
        id="value-off-outside-of-regions",
        fault="interpolate gives 16-bit values 5 % too large outside of regions",
        plant=faults.everywhere(functional.interpolate, faults.five_percent_off(in_region=False)),
        case="value.interpolate.bilinear.2d",
        killed_by=("check_low_precision_value",),
        applies=_cpu,
    ),
    _fault(
        id="low-precision-kernel-keeps-eight-bits",
        fault="a float16 kernel computes in bfloat16",
        plant=faults.everywhere(functional.interpolate, faults.through_bfloat16),
        case="value.interpolate.bilinear.2d",
        killed_by=("check_low_precision_value", "check_value_in_region"),
        applies=lambda backend: _cpu(backend) and backend.dtype == "float16",
    ),
    _fault(
        id="foreign-memory-read",
        fault="one sample of an image comes from memory beyond it",
        plant=faults.everywhere(functional.grid_sample, faults.one_foreign_value),
        case="value.grid_sample.nearest.border.181x181",
        killed_by=("check_low_precision_value", "check_value_in_region"),
        applies=_cpu,
    ),
    *mutants.MUTANTS,
)
