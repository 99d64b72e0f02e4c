"""Scalers that are not `torch.amp.GradScaler`, through the same checks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from amp_checks.core import UsageError
from amp_checks.families.scaler import others
from amp_checks.records import fixtures

SHARDED = "torch.distributed.fsdp.sharded_grad_scaler:ShardedGradScaler"


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch was built without distributed")
@pytest.mark.filterwarnings("ignore")
def test_sharded_scaler_differs_exactly_where_recorded() -> None:
    recorded = json.loads(fixtures.fixture("scaler/sharded_differences.json").read_text(encoding="utf-8"))
    # In a process of its own: its default group is the one that is there when its module is imported, or none.
    code = (
        "import json; from amp_checks import backends; from amp_checks.families.scaler import others\n"
        "with others.gloo():\n"
        f"    scaler = others.factory({SHARDED!r})\n"
        "    found = others.differences(backends.backend('cpu-float16'), scaler)\n"
        "print(json.dumps([difference.id for difference in found]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout.splitlines()[-1])) == set(recorded["differs"])


def test_torchs_own_scaler_does_not_differ_from_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert others.main(["torch.amp:GradScaler"]) == 0
    assert "torch.amp:GradScaler differs from torch.amp.GradScaler in 0 items" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["no.such.module:Scaler", "torch.amp:NoSuchScaler", "torch.amp"])
def test_a_wrong_path_is_one_clear_message(path: str) -> None:
    with pytest.raises(UsageError, match=r"give it as package\.module:ClassName"):
        others.factory(path)


def test_a_scaler_without_a_device_is_called_without_one() -> None:
    with pytest.warns(FutureWarning):
        scaler = others.factory("torch.cuda.amp:GradScaler")("cpu", enabled=False)
    assert isinstance(scaler, torch.amp.GradScaler)
