"""Planted faults around ops that must run in FP32, and the checks that notice each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

from amp_checks.checks import fp32_only as checks
from amp_checks.core import Backend
from amp_checks.mutants import fp32_only_faults as faults
from amp_checks.planting import Mutant

CASE = "linalg.inv"
OP = torch.linalg.inv


def _real(backend: Backend) -> bool:
    return not backend.emulated


def _emulated(backend: Backend) -> bool:
    return backend.emulated


@contextmanager
def _undeclared(backend: Backend) -> Iterator[Backend]:
    with mock.patch.object(checks, "declaration", return_value="supported"):
        yield backend


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        id="low-precision-call-accepted",
        family="fp32-only",
        fault="a 16-bit call is computed in float32 in silence",
        plant=faults.everywhere(OP, faults.computes_in_float32),
        case=CASE,
        killed_by=("check_low_precision_call_raises",),
        applies=_real,
    ),
    Mutant(
        id="low-precision-support-declared",
        family="fp32-only",
        fault="the record of declarations says that the op runs in 16 bits",
        plant=_undeclared,
        case=CASE,
        killed_by=("check_low_precision_call_raises",),
        applies=_emulated,
    ),
    Mutant(
        id="forced-fp32-gives-float64",
        family="fp32-only",
        fault="the op gives float64 inside the disabled region",
        plant=faults.in_disabled_regions(OP, faults.computes_in_float64),
        case=CASE,
        killed_by=("check_forced_fp32_output",),
    ),
    Mutant(
        id="forced-fp32-result-rounded",
        family="fp32-only",
        fault="the result goes through bfloat16 inside the disabled region",
        plant=faults.in_disabled_regions(OP, faults.result_rounded),
        case=CASE,
        killed_by=("check_forced_fp32_output", "check_forced_fp32_accuracy", "check_forced_fp32_gradient"),
    ),
    Mutant(
        id="fp32-kernel-keeps-eleven-bits",
        family="fp32-only",
        fault="the float32 kernel keeps only as many bits as TF32, with and without AMP",
        plant=faults.everywhere(OP, faults.keeps_eleven_bits),
        case=CASE,
        killed_by=("check_forced_fp32_accuracy",),
    ),
    Mutant(
        id="float-detaches",
        family="fp32-only",
        fault="float() inside the disabled region cuts the gradient",
        plant=faults.in_disabled_regions(torch.Tensor.float, faults.detaches),
        case=CASE,
        killed_by=("check_forced_fp32_gradient",),
    ),
    Mutant(
        id="gradient-of-float-halved",
        family="fp32-only",
        fault="the gradient of float() inside the disabled region is half of what it should be",
        plant=faults.in_disabled_regions(torch.Tensor.float, faults.halves_gradient),
        case=CASE,
        killed_by=("check_forced_fp32_gradient",),
    ),
    Mutant(
        id="disabled-region-stays-enabled",
        family="fp32-only",
        fault="enabled=False is ignored",
        plant=faults.regions(faults.stays_enabled),
        case=CASE,
        killed_by=("check_region_comes_back",),
    ),
    Mutant(
        id="disabled-region-leaks",
        family="fp32-only",
        fault="autocast stays off after a disabled region",
        plant=faults.regions(faults.leaks),
        case=CASE,
        killed_by=("check_region_comes_back",),
    ),
)
