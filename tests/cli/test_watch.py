"""``amp-checks watch``: a real run of a script or a module, its exit statuses, and its records read again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from amp_checks.cli import entry
from amp_checks.monitor import journal

SCRIPT = Path(__file__).parents[2] / "fixtures" / "scripts" / "watched.py"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_healthy_script_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(["watch", str(SCRIPT), "--steps", "30"]) == 0
    out = capsys.readouterr().out
    assert "the script ran to its end" in out
    assert out.splitlines()[-1] == "AMP goes right: no error, 0 warnings in 30 steps"
    assert journal.read(Path("amp-watch.jsonl")).missing == ()


@pytest.mark.parametrize(("fault", "rule"), [("overflow", "loss-scale-falls"), ("autocast-lost", "autocast-stopped")])
def test_a_fault_gives_status_1_and_stops_the_training_if_asked(
    fault: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(SCRIPT), "--fault", fault]
    assert entry(["watch", "--stop-on", "error", "--json", "found.json", *arguments, "--endless"]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].startswith("AMP GOES WRONG: 1 errors, ")
    assert "the training was ended" in captured.err
    assert [
        one["rule"] for one in json.loads(Path("found.json").read_text())["findings"] if one["severity"] == "error"
    ] == [rule]
    assert entry(["watch", "--read", "amp-watch.jsonl"]) == 1
    assert rule in capsys.readouterr().out


def test_a_module_runs_as_python_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path("trainings")
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(SCRIPT, package / "late.py")
    assert entry(["watch", "--every", "5", "-m", "trainings.late", "--steps", "12"]) == 0
    assert sum(one["kind"] == "step" for one in journal.read(Path("amp-watch.jsonl")).records) == 12


def test_a_script_that_raises_shows_its_own_traceback_and_keeps_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(["watch", str(SCRIPT), "--fault", "raise"]) == 1
    captured = capsys.readouterr()
    assert "the script's own error" in captured.err
    assert "amp_checks" not in captured.err.split("Traceback")[1].split("amp-checks: error")[0]
    assert "runpy" not in captured.err
    assert captured.err.endswith("amp-checks: error: the script raised ValueError\n")
    records = journal.read(Path("amp-watch.jsonl")).records
    assert records[-1]["raised"] == "ValueError: the script's own error"
    assert sum(one["kind"] == "step" for one in records) == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a script"),
        (["missing.py"], "there is no script missing.py"),
        (["-m", "no.such.module"], "there is no module no.such.module"),
        (["--every", "0", str(SCRIPT)], "--every takes"),
        (["--read", "missing.jsonl"], "cannot be read"),
        (["--record", "no/folder/\0", str(SCRIPT)], ""),
    ],
)
def test_bad_input_is_one_message_and_status_4(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "\0" in "".join(arguments):
        Path("no").touch()
        arguments = ["--record", "no/record.jsonl", str(SCRIPT)]
        message = "cannot be written"
    assert entry(["watch", *arguments]) == 4
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_ranks_that_part_are_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in (("same", "0"), ("other", "1"), ("third", "0")):
        assert entry(["watch", "--record", f"{name}.jsonl", str(SCRIPT), "--steps", "25", "--seed", seed]) == 0
    capsys.readouterr()
    assert entry(["watch", "--read", "same.jsonl", "third.jsonl"]) == 0
    assert entry(["watch", "--read", "same.jsonl", "other.jsonl"]) == 1
    assert "weights differ between ranks at step 0" in capsys.readouterr().out
    assert entry(["watch", "--sharded", "--read", "same.jsonl", "other.jsonl"]) == 0


def test_a_rank_writes_its_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    from amp_checks.monitor.recorder import rank, world

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for cached in (rank, world):
        cached.cache_clear()
    try:
        assert entry(["watch", str(SCRIPT), "--steps", "5"]) == 0
    finally:
        for cached in (rank, world):
            cached.cache_clear()
    assert journal.read(Path("amp-watch.rank1.jsonl")).start["rank"] == 1
    assert torch.is_grad_enabled()
