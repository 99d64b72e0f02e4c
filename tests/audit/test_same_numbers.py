"""What a case draws is the same in every run of it, on every machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from amp_checks import backends
from amp_checks.audit import AuditCase, load
from amp_checks.audit.evidence import Evidence
from amp_checks.audit.runs.plan import AMP, Runs

CPU = backends.backend("cpu-float16")


def _case(build: Callable[..., Any]) -> AuditCase:
    return AuditCase(id="mine.py:case", build=build)


def test_a_case_draws_the_same_numbers_wherever_its_file_lies(tmp_path: Path) -> None:
    files = [tmp_path / folder / "mine.py" for folder in ("here", "there")]
    for file in files:
        file.parent.mkdir()
        file.write_text(
            "import torch\n"
            "from torch import nn\n"
            "def case(device, dtype):\n"
            "    loss = lambda model, batch: model(batch).float().square().mean()\n"
            "    model = nn.Linear(4, 2).to(device)\n"
            "    return {'model': model, 'batches': [torch.randn(8, 4).to(device)], 'loss': loss}\n",
            encoding="utf-8",
        )
    first, second = (Runs(load(f"{file}:case"), CPU).trace(AMP) for file in files)
    assert first.start == second.start
    assert first.losses == second.losses


class _Drawn:
    """A loader that draws each batch when it is asked for it, as the model draws its dropout in between."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.randn(8, 4) for _ in range(3))


def test_a_loader_draws_in_every_run_what_it_draws_in_the_first() -> None:
    def case() -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2))
        return {"model": model, "batches": _Drawn(), "loss": lambda model, batch: model(batch).float().square().mean()}

    evidence = Evidence(Runs(_case(case), backends.backend("cpu-bfloat16")))
    assert evidence.fp64 is not None
    losses = [[loss for _, loss in trace.losses] for trace in (evidence.amp, evidence.fp32, evidence.fp64)]
    assert losses[1] == pytest.approx(losses[2], rel=1e-5)
    assert losses[0] == pytest.approx(losses[2], rel=0.05)
