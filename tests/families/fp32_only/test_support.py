"""The record of low-precision support, the sweep that makes it, and the table that is printed of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from amp_checks import backends, cli
from amp_checks.cli import unsupported
from amp_checks.core import SuiteError
from amp_checks.families.fp32_only import sweep
from amp_checks.records import low_precision
from amp_checks.records.low_precision import Found, Kind, Meets, Outcome, Seen

RAISES = Outcome(kind=Kind.RAISES, count=2, of=3, why='"lu_cpu" not implemented')
RUNS = Outcome(kind=Kind.SUPPORTS, count=3, of=3)


def seen(
    forward: Outcome | None = RUNS,
    backward: Outcome | None = RUNS,
    *,
    declared: tuple[bool, bool | None] = (True, True),
    op: str = "linalg.inv",
    meets: Meets = Meets.ERROR,
) -> Seen:
    return Seen(
        op=op,
        forward=forward,
        backward=backward,
        declared_forward=declared[0],
        declared_backward=declared[1],
        meets=meets,
    )


@pytest.mark.parametrize(
    ("of", "lacks", "differs", "notable"),
    [
        (seen(), "", False, False),
        (seen(backward=None, declared=(True, None)), "", False, False),
        (seen(RAISES, None, declared=(False, False)), "forward", False, True),
        (seen(RAISES, None), "forward", True, True),
        (seen(declared=(False, False)), "", True, True),
        (seen(backward=RAISES, declared=(True, False)), "backward", False, True),
        (seen(backward=RAISES), "backward", True, True),
        (seen(None, None, declared=(False, False)), "forward", False, True),
        (seen(None, None, declared=(True, False)), "backward", False, True),
        (seen(None, None), "", False, False),
    ],
)
def test_what_was_seen_and_what_is_declared(of: Seen, lacks: str, *, differs: bool, notable: bool) -> None:
    assert (of.lacks, of.differs, of.notable) == (lacks, differs, notable)


def test_what_was_seen_survives_json() -> None:
    for of in (seen(RAISES, None, declared=(False, None)), seen(None, None)):
        assert low_precision.from_json(of.op, json.loads(json.dumps(low_precision.to_json(of)))) == of


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0", "2.14.1", "2.15.0"])
def test_there_is_a_record_of_every_supported_torch(version: str) -> None:
    cpu, cuda = low_precision.recorded()[version]["cpu"], low_precision.recorded()[version]["cuda"]

    assert cpu.ran
    assert not cuda.ran
    assert all(of.verified for ops in cpu.ops.values() for of in ops.values() if of.lacks)
    assert not any(of.verified for ops in cuda.ops.values() for of in ops.values())
    assert min(cpu.looked_at, cuda.looked_at) > 650


@pytest.mark.parametrize(("asked", "got"), [("2.12.1", "2.11.0"), ("2.13.0+cpu", "2.13.0"), ("2.10", "2.11.0")])
def test_a_torch_without_a_record_of_its_own_has_the_one_before_it(asked: str, got: str) -> None:
    assert low_precision.record_for(asked, "cpu").torch == got


@pytest.mark.parametrize("text", ["{", "[]", '{"devices": {"cpu": {}}}', '{"torch": 1}'])
def test_a_malformed_record_is_one_message_that_names_its_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "torch-9.9.9.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(SuiteError, match=r"torch-9\.9\.9\.json cannot be read as a record of low-precision support"):
        low_precision.load(path)


def test_the_sweep_places_ops_of_each_kind() -> None:
    found = sweep.run_here("cpu", ["linalg.inv", "special.i1", "matrix_exp", "softmax.with_dtype", "mm"])
    by_name = found.ops["float16"]

    assert found.ran
    assert by_name["linalg.inv"].lacks == "forward"
    assert by_name["linalg.inv"].meets is Meets.RULE
    assert by_name["special.i1"].lacks == "backward"
    kinds = {name: of.forward.kind for name, of in by_name.items() if of.forward is not None}
    assert kinds == {
        "linalg.inv": Kind.RAISES,
        "special.i1": Kind.SUPPORTS,
        "matrix_exp": Kind.WRONG,
        "softmax.with_dtype": Kind.FLOAT32,
        "mm": Kind.SUPPORTS,
    }


def test_what_is_declared_is_never_taken_for_verified() -> None:
    found = sweep.run_here("cuda", ["linalg.inv", "mm"], declared=True)

    assert not found.ran
    assert not any(of.verified for of in found.ops["float16"].values())
    assert {name: of.lacks for name, of in found.ops["float16"].items()} == {"linalg.inv": "forward", "mm": ""}


def test_a_sweep_that_fails_is_one_message() -> None:
    with pytest.raises(SuiteError, match=r"the sweep over torch's op database failed: .*invalid choice"):
        sweep.run_here("abacus")


@pytest.mark.parametrize(
    ("of", "line"),
    [
        (seen(RAISES), 'with torch.autocast("cpu", enabled=False): y = torch.linalg.inv(x.float())'),
        (
            seen(RAISES, op="linalg.pinv.singular"),
            'with torch.autocast("cpu", enabled=False): y = torch.linalg.pinv(x.float())',
        ),
        (seen(RAISES, meets=Meets.RULE), "none inside a region; outside: torch.linalg.inv(x.float())"),
        (seen(RAISES, op="signal.windows.hann"), "torch.signal.windows.hann(n, dtype=torch.float32)"),
        (
            seen(dataclasses.replace(RAISES, kind=Kind.WRONG), op="matrix_exp"),
            'with torch.autocast("cpu", enabled=False): y = torch.matrix_exp(x.float())',
        ),
        (seen(), ""),
        (seen(RAISES, op="broadcast_shapes"), ""),
    ],
)
def test_the_remedy_is_one_line_of_code(of: Seen, line: str) -> None:
    assert unsupported.remedy(of, backends.backend("cpu-float16")) == line


def test_every_remedy_of_the_record_is_code_that_names_what_torch_has() -> None:
    for device in ("cpu", "cuda"):
        backend = backends.backend(f"{device}-float16")
        for of in low_precision.record_for(torch.__version__, device).ops["float16"].values():
            if of.lacks and of.op != "broadcast_shapes":
                code = unsupported.remedy(of, backend).removeprefix("none inside a region; outside: ")
                compile(code, "<remedy>", "exec")
                assert "torch." in code or "x.float()." in code


@pytest.fixture
def _without_expecttest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def lines_of(text: str, part: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(part)]


@pytest.mark.usefixtures("_without_expecttest")
def test_the_command_prints_what_is_recorded_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.entry(["policy", "--unsupported", "--backend", "cpu-float16"]) == 0
    printed = capsys.readouterr().out
    version = low_precision.record_for(torch.__version__, "cpu").torch

    assert f"recorded under torch {version}; run on " in printed
    (inverse,) = lines_of(printed, "linalg.inv ")
    assert "raises" in inverse
    assert "its own FP32 rule" in inverse
    (norm,) = lines_of(printed, "linalg.norm ")
    assert "declared: supports" in norm


@pytest.mark.usefixtures("_without_expecttest")
def test_an_emulated_backend_is_declared_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.entry(["policy", "--unsupported", "--backend", "emulated-cuda-float16"]) == 0
    printed = capsys.readouterr().out

    assert "declared, nothing was run on a device" in printed
    (inverse,) = lines_of(printed, "linalg.inv ")
    assert "declared: raises" in inverse
    assert 'with torch.autocast("cuda", enabled=False): y = torch.linalg.inv(x.float())' in inverse


@pytest.mark.usefixtures("_without_expecttest")
def test_the_command_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "unsupported.json"
    assert cli.entry(["policy", "--unsupported", "--json", str(file)]) == 0
    written = json.loads(file.read_text(encoding="utf-8"))
    capsys.readouterr()
    assert cli.entry(["policy", "--unsupported", "--json", "-"]) == 0

    assert json.loads(capsys.readouterr().out) == written
    assert written["schema"] == "amp_checks/unsupported"
    assert written["backends"]["cpu-float16"]["ops"]["linalg.inv"]["how"] == "run"
    assert written["backends"]["emulated-cuda-float16"]["ops"]["linalg.inv"]["how"] == "declared"


def test_the_command_runs_the_database_where_it_can(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def run_here(device: str, *, declared: bool) -> Found:
        asked.append((device, declared))
        return low_precision.record_for(torch.__version__, device)

    monkeypatch.setattr(sweep, "run_here", run_here)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(backends, "default_ids", lambda: ("cpu-float16", "emulated-cuda-float16"))
    assert cli.entry(["policy", "--unsupported", "--fresh"]) == 0
    assert asked == [("cpu", False), ("cuda", True)]
    assert "looked at now" in capsys.readouterr().out

    asked.clear()
    monkeypatch.setattr(low_precision, "machine", lambda: "an abacus")
    assert cli.entry(["policy", "--unsupported"]) == 0
    assert asked == [("cpu", False), *([] if _is_recorded() else [("cuda", True)])]


def _is_recorded() -> bool:
    return torch.__version__.partition("+")[0] in low_precision.recorded()


def test_what_is_recorded_of_this_torch_and_machine_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = low_precision.record_for(torch.__version__, "cpu")
    monkeypatch.setattr(torch, "__version__", f"{record.torch}+cpu")
    monkeypatch.setattr(low_precision, "machine", lambda: record.machine)
    monkeypatch.setattr(sweep, "run_here", lambda *_, **__: pytest.fail("it was run"))
    monkeypatch.setattr(backends, "default_ids", lambda: ("cpu-float16", "emulated-cuda-float16"))
    assert cli.entry(["policy", "--unsupported"]) == 0
    told = capsys.readouterr()
    assert told.out.count("recorded under torch") == 2
    assert "--fresh runs torch's op database" in told.err


@pytest.mark.usefixtures("_without_expecttest")
def test_a_fresh_look_without_the_database_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.entry(["policy", "--unsupported", "--fresh", "--backend", "cpu-float16"]) == 4
    assert "needs expecttest" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("backend", "told"),
    [
        ("gpu-float16", "unknown backend 'gpu-float16'; there are cuda-float16"),
        ("emulated-xpu-float16", "no record of what 'xpu' runs in 16 bits; there are records of cpu, cuda"),
        ("cuda-float16", "backend cuda-float16 is not available: "),
    ],
)
def test_what_cannot_be_looked_up_is_one_message(backend: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    if backend == "cuda-float16" and backends.why_unavailable(backend) is None:
        pytest.skip("CUDA is here")

    assert cli.entry(["policy", "--unsupported", "--backend", backend]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("amp-checks: error: ")
    assert told in line
