"""The range table: complete, stated in words, and what its measurement stands on."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from amp_checks import backends, cli
from amp_checks.core import CastPolicy, Status, SuiteError
from amp_checks.families.ops.cases import OVERLOADS
from amp_checks.families.ops.explicit import Call
from amp_checks.families.ops.inputs import Plan
from amp_checks.families.ranges import checks, probe
from amp_checks.families.ranges.cases import CASES, GATE, row
from amp_checks.families.ranges.exceptions import EXCEPTIONS, NO_KERNEL
from amp_checks.families.ranges.inputs import (
    DIRECTIONS,
    FLOAT32,
    INACCURATE,
    NAN,
    OVERFLOWS,
    SAFE,
    UNDERFLOWS,
    Input,
    nowhere,
    of_table,
    up_to,
)
from amp_checks.families.ranges.limits import AT_ZERO, limits
from amp_checks.records import cast_policy
from amp_checks.report import ranges as report
from amp_checks.suite.measure import measure

CPU = backends.backend("cpu-float16")
CUDA = backends.backend("emulated-cuda-float16")
ROWS = {case.name: case for case in CASES}
IN_16_BITS = (CastPolicy.LOWER_PRECISION_FP, CastPolicy.PROMOTE, CastPolicy.UNLISTED)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_op_that_autocast_leaves_in_16_bits_has_a_range_or_a_reason(device: str) -> None:
    covered = {name for case in CASES for name in (*case.covers, case.overload)} | set(EXCEPTIONS)
    meant = {
        name
        for table in cast_policy.recorded().values()
        for name in OVERLOADS
        if table.of(device, cuda_build=True).get(name, CastPolicy.UNLISTED) in IN_16_BITS
    }

    assert meant - covered == set()


def test_exceptions_are_ops_of_the_table_without_a_row() -> None:
    assert set(EXCEPTIONS) <= set(OVERLOADS)
    assert set(EXCEPTIONS) & {name for case in CASES for name in (*case.covers, case.overload)} == set()


@pytest.mark.parametrize("name", [name for name, why in EXCEPTIONS.items() if why == NO_KERNEL])
def test_an_op_said_to_have_no_16_bit_kernel_raises(name: str) -> None:
    if not cast_policy.exists(name):
        assert any(name in table.rules[device] for table in cast_policy.recorded().values() for device in table.rules)
        return
    for backend_id in ("cpu-float16", "cpu-bfloat16"):
        call = Call.of(OVERLOADS[name], backends.backend(backend_id), Plan.LOW)
        with pytest.raises(RuntimeError):
            call.run()


def test_ids_are_unique_and_every_statement_is_a_rows_own_and_applies() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    assert set(ROWS) >= GATE
    assert set(ROWS) >= set(limits()) | set(AT_ZERO)
    for name, stated in limits().items():
        for key in stated:
            *device, dtype, direction = key.split()
            assert direction in DIRECTIONS, (name, key)
            places = [
                backends.backend(f"{'emulated-' if kind == 'cuda' else ''}{kind}-{dtype}")
                for kind in device or ("cpu", "cuda")
            ]
            applying = [place for place in places if ROWS[name].stated(place, direction) is stated[key]]
            assert applying, f"{name}: {key} applies nowhere"
            assert stated[key].why


def test_the_grid_reaches_from_the_smallest_number_to_the_largest() -> None:
    half, brain = probe.grid("float16"), probe.grid("bfloat16")

    assert (half[0], half[-1]) == (torch.finfo(torch.float16).smallest_normal * 2.0**-10, 65504.0)
    assert (brain[0], brain[-1]) == (torch.finfo(torch.bfloat16).smallest_normal, torch.finfo(torch.bfloat16).max)
    assert report.SPANS["float16"] == (half[0], half[-1])
    assert report.SPANS["bfloat16"] == pytest.approx((brain[0], brain[-1]), rel=1e-4)


def _judge(amp: Sequence[float], reference: Sequence[float], alone: Sequence[float] | None = None) -> str:
    given, exact = (torch.tensor([values], dtype=torch.float64) for values in (amp, reference))
    single = exact.float() if alone is None else torch.tensor([alone])
    return probe.judge([given], [given], reference=[exact], alone=[single], low=torch.float16)[0]


@pytest.mark.parametrize(
    ("amp", "reference", "alone", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], None, SAFE),
        ([1.0, 2.0 * (1 + 3.9 * 2**-10)], [1.0, 2.0], None, SAFE),
        ([1.0, 2.0 * (1 + 4.1 * 2**-10)], [1.0, 2.0], None, INACCURATE),
        ([math.inf], [7e4], None, OVERFLOWS),
        ([math.inf, math.nan], [7e4, 1.0], None, NAN),
        ([math.nan], [1.0], None, NAN),
        ([0.0], [1e-5], None, UNDERFLOWS),
        ([1.0], [0.0], None, UNDERFLOWS),
        ([0.0], [0.0], None, SAFE),
        ([math.inf], [math.inf], None, FLOAT32),
        ([math.inf], [1e39], [math.inf], FLOAT32),
        ([math.nan], [1.0], [2.0], FLOAT32),
        ([math.nan], [1.0], [math.nan], FLOAT32),
        ([], [], None, SAFE),
    ],
)
def test_how_a_result_is_judged(
    amp: Sequence[float], reference: Sequence[float], alone: Sequence[float] | None, expected: str
) -> None:
    assert _judge(amp, reference, alone) == expected


def test_a_range_is_the_longest_run_with_its_edges_refined() -> None:
    def verdict(magnitude: float) -> str:
        if 0.2 <= magnitude < 0.7:
            return NAN
        return SAFE if 0.01 < magnitude <= 300 else OVERFLOWS if magnitude > 300 else UNDERFLOWS

    found = probe.longest_range(probe.grid("float16"), verdict, lambda magnitude: magnitude)

    assert (found.below, found.above) == (NAN, OVERFLOWS)
    assert found.low == pytest.approx(0.7, rel=0.011)
    assert found.high == pytest.approx(300, rel=0.011)


def test_no_safe_magnitude_is_an_empty_range() -> None:
    found = probe.longest_range([1.0, 2.0], lambda _: NAN, lambda magnitude: magnitude)

    assert found.empty
    assert (found.below, found.above) == (NAN, NAN)
    assert probe.agree(found.low, math.nan) == 0.0
    assert math.isinf(probe.agree(found.low, 1.0))


@pytest.mark.parametrize("pattern", ["spread", "positive", "equal", "alternating", "normal"])
def test_scaled_inputs_are_led_by_their_largest_element(pattern: str) -> None:
    values = Input(shape=(4, 5), pattern=pattern).values("seed", salted=True).reshape(-1)

    assert values[0] == 1.0
    assert values.abs().max() == 1.0
    assert torch.equal(values, Input(shape=(4, 5), pattern=pattern).values("seed", salted=True).reshape(-1))


def test_a_row_asking_for_a_tensor_that_its_op_lacks_is_told() -> None:
    with pytest.raises(SuiteError, match="its row has 1 floating tensors, and position 3 is asked for"):
        of_table(OVERLOADS["exp"], scaled=(3,))


def test_a_wrong_statement_fails_with_both_figures() -> None:
    wrong = row("square", torch.square)
    object.__setattr__(wrong, "limits", {"float16 forward": up_to(100.0, OVERFLOWS, "so it says")})
    result = measure(checks.check_safe_range, wrong, CPU)

    assert result.status is Status.FAILED
    assert "forward: largest safe magnitude = 254.625, but should be 100" in result.describe()
    assert "so it says" in result.describe()


def test_where_fp32_is_not_finite_either_nothing_is_amps_fault() -> None:
    result = measure(checks.check_safe_range, row("root below 0", lambda x: torch.sqrt(-1 - x * x)), CPU)

    assert result.status is Status.PASSED
    assert {finding.actual for finding in result.findings if "magnitude" in finding.subject} == {"nowhere"}


def test_a_wider_range_is_no_fault_where_the_kernels_were_not_measured() -> None:
    def passes(low: float, high: float, *, wider_is_fine: bool) -> bool:
        found = probe.Range(low=low, high=high, below=UNDERFLOWS, above=OVERFLOWS)
        claimed = probe.Range(low=1e-3, high=10.0, below=INACCURATE, above=OVERFLOWS)
        return all(
            finding.passed for finding in checks.edges("forward", found, claimed, why="", wider_is_fine=wider_is_fine)
        )

    assert passes(1e-3, 10.0, wider_is_fine=False)
    assert passes(1e-5, 1e4, wider_is_fine=True)
    assert not passes(1e-5, 1e4, wider_is_fine=False)
    assert not passes(1e-3, 1.0, wider_is_fine=True)
    assert not passes(1.0, 1e4, wider_is_fine=True)


def test_a_row_said_to_be_safe_nowhere_must_not_be() -> None:
    fine = row("fine", torch.relu)
    object.__setattr__(fine, "limits", {"float16 forward": nowhere(NAN, "so it says")})
    result = measure(checks.check_finite_inside, fine, CPU)

    assert [finding.subject for finding in result.failures] == ["forward: safe nowhere"]
    assert "5.96e-08 safe" in str(result.failures[0].actual)


def test_zero_inputs_that_lose_their_eps_are_seen_and_a_reason_must_hold() -> None:
    lost = row("over", lambda x: x / (x.abs().sum() + 1e-8))
    kept = row("over", lambda x: x / (x.abs().sum() + 1e-3))
    object.__setattr__(kept, "at_zero", {"float16 forward": "so it says"})

    assert measure(checks.check_zero_inputs, lost, CPU).status is Status.FAILED
    assert measure(checks.check_zero_inputs, kept, CPU).status is Status.FAILED


def test_the_lines_of_a_run_are_those_of_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "ranges.json"
    assert cli.entry(["ranges", "--op", "exp", "--backend", "cpu-float16", "--json", str(file)]) == 0
    told = capsys.readouterr().out
    assert "exp  cpu-float16  forward   unlisted  from 6.0e-08 to 11.1  above: gives inf (e^x passes 65504" in told
    (line, _) = report.from_results([measure(checks.check_safe_range, ROWS["exp"], CPU)])
    (entry, _) = json.loads(file.read_text(encoding="utf-8"))["ranges"]

    assert (line.op, line.policy, line.direction, line.above, line.why) == tuple(
        entry[name] for name in ("op", "policy", "direction", "above", "why")
    )
    assert line.high == pytest.approx(entry["high"], rel=1e-3)
    assert line.outside in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "softmax"], "unknown op 'softmax'; did you mean 'softmax.int'"),
        (["--op", "zzzz"], "unknown op 'zzzz'; amp-checks ranges --list lists all"),
        (["--op", "exp", "--plot", "x.svg"], "--plot draws one backend: name it with --backend"),
        (["--backend", "cpu"], "unknown backend 'cpu'"),
    ],
)
def test_bad_input_is_one_line_and_status_4(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.entry(["ranges", *arguments]) == 4
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1


def test_the_mutants_of_another_backend_do_not_change_the_references() -> None:
    """The references are computed below any function mode: a fault under AMP cannot hide in them."""
    from amp_checks.families.ranges.mutants import MUTANTS

    mutant = next(one for one in MUTANTS if one.id == "mean-sums-in-16-bits")
    with mutant.plant(CPU) as faulty, faulty.activate():
        found = probe.measure(ROWS["mean long"], faulty)["forward"]

    assert found.amp.high == pytest.approx(16, rel=0.02)
    assert found.ideal.high == 65504.0
