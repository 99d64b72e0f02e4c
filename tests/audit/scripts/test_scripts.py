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
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "fixtures" / "scripts"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the scripts, as a user has them."""
    return Path(shutil.copytree(SCRIPTS, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")))


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def audit(folder: Path, *arguments: str, **environment: str) -> tuple[int, dict[str, Any] | None, str]:
    """Exit status, the document, and what was written on standard error; nothing in the folder may have changed."""
    before, out = contents(folder), folder.parent / "out.json"
    out.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "amp_checks", "audit", "--json", str(out), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert contents(folder) == before
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(out.read_text()) if out.exists() else None, done.stderr


PLAIN = ("plain.py", "--fault")
VISION = ("vision/train.py", "--fault")
PACKAGE = ("-m", "package")
HEALTHY = {"plain": ("plain.py",), "gan": ("gan.py",), "vision": ("vision/train.py",), "package": PACKAGE}
FAULTY = {
    "clipped-scaled": ("scaled-gradients-modified", "plain.py", (*PLAIN, "clipped-scaled")),
    "bypassed": ("scaler-bypassed", "plain.py", (*PLAIN, "bypassed")),
    "not-scaled": ("loss-not-scaled", "gan.py", ("gan.py",)),
    "changed-scaled": ("scaled-gradients-modified", "gan.py", ("gan.py",)),
    "clipped-scaled in another file": ("scaled-gradients-modified", "vision/utils.py", (*VISION, "clipped-scaled")),
    "stepped-twice": ("scaler-bypassed", "vision/utils.py", (*VISION, "stepped-twice")),
    "changed-late": ("gradients-modified-after-step", "package/__main__.py", (*PACKAGE, "fault=changed-late")),
    "scaled-twice": ("loss-scaled-twice", "package/__main__.py", (*PACKAGE, "fault=scaled-twice")),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_script_has_no_finding(name: str, folder: Path) -> None:
    status, document, _ = audit(folder, *HEALTHY[name])
    assert document is not None
    assert document["audits"][0]["diagnostics"] == []
    assert status == 0
    assert name != "plain" or "is_available" in document["audits"][0]["summary"]["answered for the device"]


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_of_a_script_is_found_named_and_placed(name: str, folder: Path) -> None:
    rule, file, arguments = FAULTY[name]
    fault = name.partition(" ")[0]
    _, document, _ = audit(folder, *arguments, FAULT=fault)
    assert document is not None
    found = [one for one in document["audits"][0]["diagnostics"] if one["follows_from"] is None]
    lines = (SCRIPTS / file).read_text().splitlines()
    (number,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"# {fault}")]
    placed = [(one["rule"], one["where"]) for one in found if one["severity"] != "note"]
    assert (rule, f"{file}:{number}") in placed
    assert len([one for one in found if one["severity"] == "error"]) <= 1


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
        "  s.scale(l).backward(); s.step(o); s.update(); o.zero_grad(); time.sleep(0.2)\n"
    )
    command = [sys.executable, "-m", "amp_checks", "audit", "--json", str(out), "slow.py"]
    with started.open("w") as said:
        process = subprocess.Popen(
            command, cwd=folder, stderr=said, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        while "run 3: " not in started.read_text():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 2
    assert "interrupted" in json.loads(out.read_text())["audits"][0]["incomplete"]
