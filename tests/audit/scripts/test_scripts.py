"""Whole scripts, as they are: healthy and faulty, found, named and placed, and their folder as it was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from script_audits import ROOT, SCRIPTS, Faulty, assert_found, assert_healthy, audit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the scripts, as a user has them."""
    return Path(shutil.copytree(SCRIPTS, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")))


PLAIN = ("plain.py", "--fault")
VISION = ("vision/train.py", "--fault")
PACKAGE = ("-m", "package")
NATIVE = ("native_scaler/train.py", "--fault")
HEALTHY = {
    "plain": ("plain.py",),
    "gan": ("gan.py",),
    "vision": ("vision/train.py",),
    "package": PACKAGE,
    "native_scaler": ("native_scaler/train.py",),
    "compiled": ("compiled.py",),
    "spawned": ("spawned.py",),
    "configured": ("configured.py", "model.width=16"),
}
FAULTY = (
    Faulty("clipped-scaled", "scaled-gradients-modified", "plain.py", (*PLAIN, "clipped-scaled")),
    Faulty("bypassed", "scaler-bypassed", "plain.py", (*PLAIN, "bypassed")),
    Faulty("not-scaled", "loss-not-scaled", "gan.py", ("gan.py",)),
    Faulty("changed-scaled", "scaled-gradients-modified", "gan.py", ("gan.py",)),
    Faulty("clipped-scaled", "scaled-gradients-modified", "vision/utils.py", (*VISION, "clipped-scaled")),
    Faulty("stepped-twice", "scaler-bypassed", "vision/utils.py", (*VISION, "stepped-twice")),
    Faulty("changed-late", "gradients-modified-after-step", "package/__main__.py", (*PACKAGE, "fault=changed-late")),
    Faulty("scaled-twice", "loss-scaled-twice", "package/__main__.py", (*PACKAGE, "fault=scaled-twice")),
    Faulty("clipped-scaled", "scaled-gradients-modified", "native_scaler/scaler.py", (*NATIVE, "clipped-scaled")),
    Faulty("never-updated", "scaler-update-missing", "native_scaler/scaler.py", (*NATIVE, "never-updated")),
    Faulty("made-anew", "scaler-recreated", "native_scaler/scaler.py", (*NATIVE, "made-anew")),
    Faulty("inside", "backward-in-autocast", "compiled.py", ("compiled.py",)),
    Faulty("read-scaled", "scaled-gradients-read", "compiled.py", ("compiled.py",)),
    Faulty("decayed-scaled", "scaled-gradients-modified", "spawned.py", ("spawned.py", "decayed-scaled")),
    Faulty("bypassed", "scaler-bypassed", "spawned.py", ("spawned.py", "bypassed")),
    Faulty(
        "updated-each-time",
        "scaler-update-without-step",
        "configured.py",
        ("configured.py", "trainer.fault=updated-each-time"),
    ),
    Faulty(
        "scheduled-anyway",
        "scheduler-stepped-on-skipped-step",
        "configured.py",
        ("configured.py", "trainer.fault=scheduled-anyway"),
    ),
)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_script_has_no_finding(name: str, folder: Path) -> None:
    summary = assert_healthy(folder, HEALTHY[name])
    assert name != "plain" or "is_available" in summary["answered for the device"]


@pytest.mark.parametrize("faulty", FAULTY, ids=str)
def test_a_fault_of_a_script_is_found_named_and_placed(faulty: Faulty, folder: Path) -> None:
    assert_found(folder, faulty)


def test_a_quick_audit_makes_two_runs_and_keeps_what_was_written(folder: Path) -> None:
    kept = folder.parent / "kept"
    _, document, said = audit(folder, "--quick", "--keep", str(kept), *PLAIN, "clipped-scaled", "--out-dir", "made")
    assert document is not None
    assert "scaled-gradients-modified" in [one["rule"] for one in document["audits"][0]["diagnostics"]]
    assert "run 2: " in said
    assert "run 3: " not in said
    assert (kept / "emulated-cuda-float16" / "made" / "ckpt.pt").is_file()
    assert "saved 0" in (kept / "emulated-cuda-float16" / "output.txt").read_text()


BROKEN = {
    "ends": ("print(1)", "ended before it began to train: it made no optimizer"),
    "exits": ("raise SystemExit('no data')", "called sys.exit('no data') before it began to train"),
    "raises": ("raise KeyError('x')", "raised before it began to train: KeyError: 'x' (broken.py:1)"),
    "dies": ("import os; os.kill(os.getpid(), 11)", "was ended by signal SIGSEGV before it was done"),
    "hangs": ("import time; print('loading', flush=True); time.sleep(99)", "did not come to an end within"),
    "asks for a second device": ("import torch; torch.cuda.set_device(1)", "one device is emulated"),
    "goes to the CPU": (
        (
            "import torch\nm = torch.nn.Linear(2, 2)\no = torch.optim.SGD(m.parameters(), 0.1)\n"
            "while True:\n  with torch.autocast('cpu'): l = m(torch.ones(1, 2)).sum()\n  l.backward(); o.step()\n"
        ),
        "its autocast regions are for the CPU (broken.py:5); audit it as it ran, with --backend cpu-bfloat16",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_script_that_does_not_train_gets_one_message(name: str, folder: Path) -> None:
    code, message = BROKEN[name]
    (folder / "broken.py").write_text(code)
    limit = ("--time-limit", "2") if name == "hangs" else ()
    status, document, said = audit(folder, *limit, "broken.py")
    assert (status, document) == (4, None)
    assert message in said


def test_nothing_that_a_script_catches_keeps_it_going(folder: Path) -> None:
    (folder / "greedy.py").write_text(
        "import torch\nm = torch.nn.Linear(4, 4).cuda(); o = torch.optim.SGD(m.parameters(), 0.1)\n"
        "s = torch.amp.GradScaler('cuda', init_scale=4.0)\nwhile True:\n  try:\n"
        "    with torch.autocast('cuda'): l = m(torch.ones(2, 4, device='cuda')).float().square().mean()\n"
        "    s.scale(l).backward(); s.step(o); s.update(); o.zero_grad()\n"
        "  except BaseException: pass\n  finally: open('log.txt', 'a').write('x')\n"
    )
    status, document, _ = audit(folder, "greedy.py")
    assert status == 0
    assert document is not None
    assert document["audits"][0]["summary"]["written, to a scratch copy"] == "log.txt"


def test_an_interrupted_audit_keeps_what_it_found(folder: Path) -> None:
    out, started = folder.parent / "out.json", folder.parent / "started"
    (folder / "slow.py").write_text(
        "import time, torch\nm = torch.nn.Linear(4, 4).cuda(); o = torch.optim.SGD(m.parameters(), 0.1)\n"
        "s = torch.amp.GradScaler('cuda', init_scale=4.0)\nfor i in range(99):\n"
        "  with torch.autocast('cuda'): l = m(torch.ones(2, 4, device='cuda')).float().square().mean()\n"
        "  s.scale(l).backward(); s.step(o); s.update(); o.zero_grad(); time.sleep(0.5)\n"
    )
    command = [sys.executable, "-m", "amp_checks", "audit", "--json", str(out), "slow.py"]
    with started.open("w") as said:
        process = subprocess.Popen(
            command, cwd=folder, stderr=said, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        while "run 2: " not in started.read_text():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 2
    assert "interrupted" in json.loads(out.read_text())["audits"][0]["incomplete"]
