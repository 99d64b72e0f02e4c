"""Errors against float64: the measure, the draws, and that no listed overload of a default backend goes without."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch

from amp_checks import backends, families
from amp_checks.core import CastPolicy, Status
from amp_checks.families.ops import accuracy, checks, error
from amp_checks.families.ops.cases import CASES, OVERLOADS
from amp_checks.families.ops.inputs import FIRST, Draw, Plan
from amp_checks.families.ops.mutants import kernels
from amp_checks.families.ops.rows import OpCase, x
from amp_checks.families.ops.trial import GradientTrial, Trial
from amp_checks.families.ops.variants import SpellingCase, UncastFormCase
from amp_checks.records import cast_policy
from amp_checks.suite.measure import measure
from amp_checks.torch_api.backend import Backend
from amp_checks.torch_api.dtypes import LOW
from amp_checks.torch_api.numerics import randn

DEFAULT = [
    backends.backend(name)
    for name in ("cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16")
]


def drawn(shape: tuple[int, ...], unit: torch.dtype, draws: int = 8) -> list[error.Pair]:
    wide = [randn(*shape, seed=f"errors {number}").double() for number in range(draws)]
    return [(tensor.to(unit), tensor) for tensor in wide]


@pytest.mark.parametrize("unit", LOW)
@pytest.mark.parametrize("shape", [(1,), (4, 5)])
def test_rounding_once_is_half_an_eps_at_most(unit: torch.dtype, shape: tuple[int, ...]) -> None:
    typical, worst = error.errors_of(drawn(shape, unit), unit=unit)
    assert 0.05 < typical <= 0.5
    assert 0.05 < worst <= 0.5


def test_what_the_bounds_must_tell_apart_is_far_on_their_other_side() -> None:
    pairs = drawn((4, 5), torch.float16)
    bounds = error.SIXTEEN_BITS["rounding"][False]
    impostor = [(out.bfloat16().half(), wide) for out, wide in pairs]
    assert error.errors_of(impostor, unit=torch.float16)[0] > bounds.typical.value
    pairs = drawn((4, 5), torch.bfloat16)
    scaled = [((out.float() * 1.016).bfloat16(), wide) for out, wide in pairs]
    assert error.errors_of(scaled, unit=torch.bfloat16)[0] > bounds.typical.value
    off = torch.ones(8, 8)
    off[2, 3] = 1.03
    pairs = drawn((8, 8), torch.bfloat16)
    one = [((out.float() * off).bfloat16(), wide) for out, wide in pairs]
    typical, worst = error.errors_of(one, unit=torch.bfloat16)
    assert typical < bounds.typical.value < bounds.worst.value < worst


def test_every_draw_counts_alike_however_small_its_values() -> None:
    pairs = drawn((4, 5), torch.bfloat16)
    flushed = torch.zeros(4, 5)
    tiny = randn(4, 5, seed="tiny").double() * 2.0**-60
    assert error.errors_of([*pairs, (tiny.bfloat16(), tiny)], unit=torch.bfloat16)[0] < 0.5
    assert error.errors_of([*pairs, (flushed.bfloat16(), tiny)], unit=torch.bfloat16)[0] > 10


@pytest.mark.parametrize(
    ("actual", "reference"),
    [
        (torch.zeros(2), torch.zeros(3, dtype=torch.float64)),
        (torch.tensor([1.0, math.nan]), torch.ones(2, dtype=torch.float64)),
        (torch.tensor([1.0, math.inf]), torch.ones(2, dtype=torch.float64)),
        (torch.ones(2), torch.zeros(2, dtype=torch.float64)),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
    ],
    ids=["shape", "nan", "inf", "zero", "whole numbers"],
)
def test_what_no_rounding_explains_is_infinite(actual: torch.Tensor, reference: torch.Tensor) -> None:
    assert error.errors_of([(actual, reference)], unit=torch.float16) == (math.inf, math.inf)


def test_nothing_to_compare_is_no_error() -> None:
    empty = torch.empty(0)
    assert error.errors_of([(empty, empty.double())], unit=torch.float16) == (0.0, 0.0)


def test_half_the_distance_of_numbers_next_to_zero_is_no_error() -> None:
    tiny = torch.tensor([2.0**-134], dtype=torch.float64)
    assert error.errors_of([(tiny.bfloat16(), tiny)], unit=torch.bfloat16) == (0.0, 0.0)


def test_the_unit_is_that_in_which_the_op_must_run_and_of_gradients_the_coarser() -> None:
    def units(name: str, plan: Plan) -> tuple[torch.dtype, torch.dtype]:
        row = OVERLOADS[name]
        with DEFAULT[2].activate():
            return Trial(row, DEFAULT[2], plan).unit, GradientTrial(row, DEFAULT[2], plan).unit

    assert units("mm", Plan.FLOAT32) == (torch.float16, torch.float16)
    assert units("dot", Plan.FLOAT32) == (torch.float32, torch.float32)
    assert units("dot", Plan.LOW) == (torch.float16, torch.float16)
    assert units("softmax.int", Plan.LOW) == (torch.float32, torch.float16)


@pytest.mark.parametrize(("backend", "last"), [(DEFAULT[0], 1.0), (DEFAULT[1], 2.0**-26)], ids=["float16", "bfloat16"])
def test_one_number_is_drawn_more_often_and_bfloat16_once_out_of_reach_of_float16(
    backend: Backend, last: float
) -> None:
    trial = Trial(OVERLOADS["dot"], backend)
    assert len(list(accuracy.draws_after_first(trial, 1))) == accuracy.ENOUGH - 1
    many = list(accuracy.draws_after_first(trial, 100))
    assert [one.number for one in many] == list(range(1, accuracy.DRAWS))
    assert [one.factor for one in many] == [1.0] * (accuracy.DRAWS - 2) + [last]
    assert FIRST not in many


def test_low_inputs_are_a_case_of_their_own_where_they_make_the_op_run_otherwise() -> None:
    def measured(name: str) -> set[str]:
        result = measure(checks.check_error, OVERLOADS[name], DEFAULT[2])
        assert result.status is Status.PASSED
        return {
            finding.subject.rpartition(" in eps of ")[2] for finding in result.findings if "eps of" in finding.subject
        }

    assert measured("dot") == {"float32", "float16"}
    assert measured("mm") == {"float16"}
    assert measured("mse_loss") == {"float32"}


def test_a_row_without_a_float64_kernel_must_name_its_reference() -> None:
    row = OVERLOADS["_grid_sampler_2d_cpu_fallback"]
    assert measure(checks.check_error, row, DEFAULT[0]).status is Status.PASSED
    nameless = OpCase(id=row.id, args=row.args, only=row.only)
    assert "name its `reference`" in measure(checks.check_error, nameless, DEFAULT[0]).message


@pytest.mark.parametrize("backend", DEFAULT, ids=lambda backend: backend.id)
def test_every_listed_overload_has_its_errors_in_the_gate(backend: Backend) -> None:
    gate: dict[str, set[str]] = defaultdict(set)
    for item in families.collect(backends=[backend], families=["ops"]):
        gate[item.case.id].add(item.check.__name__)
    without = {}
    for name, rule in cast_policy.declared(backend.device_type).items():
        row = OVERLOADS[name]
        reason = row.device_only or ("no kernel here" if row.only and backend.device_type != "cpu" else "")
        if rule is CastPolicy.BANNED or reason:
            without[name] = reason or "it raises inside a region"
            assert "check_error" not in gate[name]
            continue
        wanted = {"check_entry_dtype", "check_output_dtype", "check_matches_casting_by_hand", "check_error"}
        if not row.no_gradient:
            wanted |= {"check_gradient_dtype", "check_gradient_matches_casting_by_hand", "check_gradient_error"}
        assert wanted - ({"check_entry_dtype"} if row.call else set()) <= gate[name], name
    expected = {"cpu": set[str](), "cuda": {"binary_cross_entropy"}}[backend.device_type]
    assert expected <= set(without)
    assert all(OVERLOADS[name].only or OVERLOADS[name].device_only or name in expected for name in without)
    assert len(without) < 16


@pytest.mark.parametrize(
    "row",
    [row for row in OVERLOADS.values() if row.no_gradient and not row.fails and not row.only],
    ids=lambda row: row.id,
)
def test_a_row_that_says_it_has_no_gradient_has_none(row: OpCase) -> None:
    if not cast_policy.exists(row.id):
        pytest.skip("an op of another torch")
    found = GradientTrial(row, DEFAULT[1]).reference
    assert found.error is not None or not any(gradient.numel() for gradient in found.tensors)


def test_nothing_but_the_database_is_left_to_a_full_run() -> None:
    assert {case.id for case in CASES if case.full and not hasattr(case, "topic")} == {
        "op-database",
        "op-database.sample",
    }


def test_forms_and_spellings_of_unlisted_ops_are_checked_too() -> None:
    forms = {case.id for case in CASES if isinstance(case, UncastFormCase) and case.runs_on(DEFAULT[0])}
    assert {"mm.out", "exp.out", "exp_", "mul_.Tensor"} <= forms
    spelled = {case.id for case in CASES if isinstance(case, SpellingCase) and case.runs_on(DEFAULT[0])}
    assert {"torch.exp", "torch.dot", "torch.Tensor.mm"} <= spelled


def test_enough_slightly_wrong_kernels_of_every_kind_are_planted() -> None:
    assert len(kernels.MUTANTS) >= 40
    for way in kernels.WAYS:
        assert sum(way in kernel.ways for kernel in kernels.KERNELS) >= 10
    assert sum(kernel.in_backward for kernel in kernels.KERNELS) >= 5


def test_a_spoilt_kernel_is_whole_again_afterwards_and_spoils_16_bits_alone() -> None:
    a = randn(4, 4, seed="spoilt")
    right, wide = torch.mm(a.half(), a.half()), torch.mm(a, a)
    with kernels.spoilt("mm", kernels.too_large)(DEFAULT[0]):
        assert torch.equal(torch.mm(a, a), wide)
        assert torch.mm(a.half(), a.half()).double().sum().item() == pytest.approx(
            1.016 * right.double().sum().item(), rel=1e-2
        )
    assert torch.equal(torch.mm(a.half(), a.half()), right)


def test_a_draw_has_its_own_values() -> None:
    row = OpCase(id="mm", args=(x(3, 3), x(3, 3)))
    first, second, small = (
        Trial(row, DEFAULT[0], Plan.FLOAT32, drawn=draw).call.tensors[0]
        for draw in (FIRST, Draw(number=1), Draw(number=1, factor=0.5))
    )
    assert not torch.equal(first, second)
    assert torch.equal(second / 2, small)
