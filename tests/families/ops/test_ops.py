"""Rows, the probe at the entry of an op, casts by hand, rule faults: what the checks of ops stand on."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from amp_checks import backends, core
from amp_checks.core import CastPolicy, Status
from amp_checks.families.ops import cases as table
from amp_checks.families.ops import checks, error, explicit
from amp_checks.families.ops.entry import StoppedAtEntry, entries, overload
from amp_checks.families.ops.inputs import Plan, T, Values, draw, make
from amp_checks.families.ops.mutants import every_rule
from amp_checks.families.ops.regions.cases import CASES as REGIONS
from amp_checks.families.ops.regions.program import Seen, Topic, program
from amp_checks.families.ops.rows import OpCase, x
from amp_checks.records import cast_policy
from amp_checks.suite import collect
from amp_checks.suite.measure import measure
from amp_checks.torch_api import private
from amp_checks.torch_api.backend import Backend

CPU = backends.backend("cpu-bfloat16")
EMULATED = backends.backend("emulated-cuda-float16")


def test_ids_are_unique() -> None:
    ids = [case.id for case in table.CASES]
    assert len(ids) == len(set(ids))


def test_every_case_has_a_check_and_runs_somewhere() -> None:
    every = [backends.backend(name) for name in backends.IDS]
    for case in table.CASES:
        assert list(checks.checks_for(case)), case.id
        # A row of an op of another torch, or of a device that no real backend has (its entry is a case of its own).
        row = case if isinstance(case, OpCase) else getattr(case, "op", None)
        real = row is None or set(row.only or ("cpu",)) & set(backends.REAL)
        elsewhere = row is not None and not (real and cast_policy.exists(row.id))
        assert elsewhere or any(case.runs_on(backend) for backend in every), case.id


def test_every_topic_of_regions_has_a_program_and_a_check() -> None:
    assert {case.topic for case in REGIONS} == set(Topic)
    names = [next(iter(checks.checks_for(case))).__name__ for case in REGIONS]
    assert len(set(names)) == len(Topic)


def test_a_program_that_does_not_report_a_subject_fails_on_it() -> None:
    @program(Topic.STATE, {"inside": "low", "after": "float32"})
    def silent(_: Backend) -> Seen:
        return {"inside": "low"}

    result = measure(next(iter(checks.checks_for(silent))), silent, CPU)
    assert (result.id, result.status) == ("check_region_state-region.silent-cpu-bfloat16", Status.FAILED)
    assert [(finding.subject, finding.actual) for finding in result.failures] == [("after", None)]


@pytest.mark.parametrize("backend", [CPU, EMULATED], ids=lambda backend: backend.id)
def test_the_probe_sees_a_composite_with_its_inputs_cast(backend: Backend) -> None:
    with backend.activate():
        a = torch.randn(3, 3, generator=torch.Generator().manual_seed(0)).to(backend.device_type)
        with entries("linear") as seen, backend.region():
            torch.nn.functional.linear(a, a)
        with entries("linear") as outside:
            torch.nn.functional.linear(a, a)
    assert seen[0].dtypes == (backend.dtype, backend.dtype)
    assert outside[0].dtypes == ("float32", "float32")


def test_the_probe_stops_where_it_is_told_and_is_gone_afterwards() -> None:
    a = torch.ones(2, 2)
    with entries("mm", stop=True) as seen, pytest.raises(StoppedAtEntry):
        torch.mm(a, a)
    assert len(seen) == 1
    torch.mm(a, a)
    assert len(seen) == 1


def test_an_op_that_does_not_exist_is_the_tables_fault() -> None:
    with pytest.raises(core.SuiteError, match="has no op aten::nonesuch"):
        overload("nonesuch")
    result = measure(checks.check_output_dtype, OpCase(id="nonesuch", args=()), CPU)
    assert result.status is Status.ERROR
    assert "aten::nonesuch" in result.message


def test_a_row_that_cannot_run_is_an_error_not_a_pass() -> None:
    broken = OpCase(id="mm", args=(x(2, 3), x(2, 3)))
    for check in (
        checks.check_output_dtype,
        checks.check_matches_casting_by_hand,
        checks.check_error,
        checks.check_gradient_dtype,
    ):
        result = measure(check, broken, CPU)
        assert result.status is Status.ERROR, check.__name__
        assert "does not run with explicit casts" in result.message


def test_an_op_that_raises_leaves_the_rest_unharmed() -> None:
    good = table.OVERLOADS["mm"]
    measure(checks.check_error, OpCase(id="mm", args=(x(2, 3), x(2, 3))), CPU)
    assert measure(checks.check_error, good, CPU).status is Status.PASSED


@pytest.mark.parametrize(
    ("rule", "dtypes", "expected"),
    [
        (CastPolicy.LOWER_PRECISION_FP, (torch.float32,), torch.bfloat16),
        (CastPolicy.FP32, (torch.bfloat16,), torch.float32),
        (CastPolicy.PROMOTE, (torch.bfloat16, torch.float32), torch.float32),
        (CastPolicy.PROMOTE, (torch.bfloat16, torch.bfloat16), torch.bfloat16),
        (CastPolicy.PROMOTE, (torch.float64, torch.bfloat16), torch.bfloat16),
        (CastPolicy.PROMOTE, (torch.int64,), None),
        (CastPolicy.UNLISTED, (torch.bfloat16,), None),
        (CastPolicy.FP32_SET_OPT_DTYPE, (torch.bfloat16,), None),
    ],
)
def test_where_a_policy_casts_to(
    rule: CastPolicy, dtypes: tuple[torch.dtype, ...], expected: torch.dtype | None
) -> None:
    assert explicit.target_dtype(rule, dtypes, torch.bfloat16) is expected


@pytest.mark.parametrize("kind", [kind for kind in Values if kind is not Values.INTEGERS])
def test_inputs_are_the_same_each_time_and_of_their_kind(kind: Values) -> None:
    spec = T((5, 5), kind)
    one, two = draw(spec, seed="a"), draw(spec, seed="a")
    assert torch.equal(one, two)
    assert torch.isfinite(one).all()
    if kind is Values.SPD:
        assert torch.equal(one, one.mT)
        assert torch.linalg.eigvalsh(one.double()).min() > 0.5
    if kind in (Values.SPD, Values.REGULAR):
        assert torch.linalg.cond(one.double()) < 10


def test_a_plan_gives_its_dtypes_and_leaves_fixed_ones() -> None:
    row = table.OVERLOADS["index_put"]
    made = make(row.args, plan=Plan.LOW_FIRST, low=torch.float16, device="cpu", seed="a")
    assert (made[0].dtype, made[1][0].dtype, made[2].dtype) == (torch.float16, torch.int64, torch.float32)


def test_whole_number_results_must_be_equal() -> None:
    one = torch.tensor([1, 2])
    assert error.error_of(one, one, run_dtype=torch.float32) == 0.0
    assert math.isinf(error.error_of(one, one + 1, run_dtype=torch.float32))


def test_removing_any_rule_of_the_cpu_is_caught_by_running_the_op() -> None:
    told: list[str] = []
    tallies = list(every_rule.break_every_rule(told.append, (CPU,)))
    removed = [tally for tally in tallies if tally.kind.startswith(every_rule.REMOVED)]
    runnable = [name for name, row in table.OVERLOADS.items() if name in cast_policy.declared("cpu") and not row.call]
    assert sum(tally.by_running for tally in removed) >= len(runnable)
    assert [name for tally in tallies for name in tally.survived] == []
    alone = {name for tally in removed for name in tally.entry_alone}
    assert {"linear", "linalg_inv", "stft", "svd"} <= alone
    assert not {"mm", "exp", "addmm"} & alone


def test_a_rule_added_to_torch_is_named() -> None:
    with private.kernel("tanh", "AutocastCPU", lambda tensor: tensor):
        result = measure(checks.check_registrations, table.RegistrationCase(), CPU)
    assert [finding.subject for finding in result.failures] == ["number of rules", "rule of tanh"]


def test_the_checks_of_one_row_on_both_backends_pass_or_are_known() -> None:
    row = dataclasses.replace(table.OVERLOADS["addmm"])
    for item in collect.items_of([row], [CPU, EMULATED]):
        assert item.run().status is Status.PASSED, item.id
