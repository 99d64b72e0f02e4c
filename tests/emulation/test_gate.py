"""The emulation's own gate: torch's op database, and torch's own lists of CUDA's autocast ops, each in its own process.

`opinfo.py` and `torch_lists.py` run whole by hand; here some parts run on a sample of the ops.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from amp_checks.torch_api import private

HERE = Path(__file__).parent


def run(script: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent.parent), environment.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, HERE / script, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    lines = ran.stdout.splitlines()
    assert lines, ran.stderr
    return ran.returncode, json.loads(lines[-1]), ran.stdout + ran.stderr


FIDELITY = {
    "bfloat16": "--dtype bfloat16",
    "float16, sampled": "--dtype float16 --every 12",
    "low inputs, sampled": "--dtype bfloat16 --inputs low --every 12 --offset 1",
    "mixed inputs, sampled": "--dtype bfloat16 --inputs mixed --every 12 --offset 2",
    "backward inside, sampled": "--dtype bfloat16 --inside --every 12 --offset 3",
    "observed, sampled": "--dtype bfloat16 --observed --every 12 --offset 4",
    "autocast off, observed, sampled": "--dtype bfloat16 --disabled --observed --every 12 --offset 5",
}


@pytest.mark.parametrize("name", FIDELITY)
def test_emulated_cpu_is_real_cpu_autocast_to_the_bit(name: str) -> None:
    status, summary, output = run("opinfo.py", "fidelity", *FIDELITY[name].split())
    assert status == 0, output
    assert summary["unforeseen"] == []
    if "sampled" not in name:
        assert summary["ops"] - summary["right"] <= 3


@pytest.mark.parametrize(
    "arguments",
    [
        "--device cuda --every 6",
        "--device cuda --every 24 --offset 1 --numerics float32",
        "--device cuda --every 24 --offset 2 --dtype bfloat16",
        "--device xpu --every 48",
        "--device mps --every 48 --offset 1",
        "--device mtia --every 48 --offset 2",
        "--device maia --every 48 --offset 3",
    ],
)
def test_every_op_runs_on_the_emulated_device(arguments: str) -> None:
    status, summary, output = run("opinfo.py", "sweep", *arguments.split())
    assert status == 0, output
    assert summary["unforeseen"] == []


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_torchs_own_lists_hold(device: str) -> None:
    _, summary, output = run("torch_lists.py", "--device", device)
    exceptions = {"torch_fp16/einsum"}  # the row lacks a comma's worth of parentheses: its arguments are a string
    if device == "xpu":  # no rule and no cuDNN there
        exceptions |= {"torch_fp16/cudnn_convolution", "torch_fp16/cudnn_convolution_transpose"}
    assert set(summary["wrong"]) == exceptions, output
    assert summary["rows"] >= 120


@pytest.mark.parametrize("hermitian", [False, True])
def test_pinv_fails_under_real_autocast_as_it_does_emulated(hermitian: bool) -> None:
    """What the sweep calls AMP's own is shown on real CPU autocast: and its kernel is one for all devices."""
    matrix = torch.eye(3).requires_grad_()
    with torch.autocast("cpu", dtype=torch.float16):
        out = torch.linalg.pinv(matrix, hermitian=hermitian)
    assert out.dtype is torch.float16
    with pytest.raises(RuntimeError, match="same dtype"):
        out.sum().backward()
    name = "aten::linalg_pinv.atol_rtol_tensor"
    keys = ("CPU", "CUDA", "AutocastCPU", "AutocastCUDA", "CompositeExplicitAutogradNonFunctional")
    assert [key for key in keys if private.has_kernel(name, key)] == [keys[-1]]
    assert {"aten::matmul"} <= private.autocast_rules("cuda") & private.autocast_rules("cpu")
