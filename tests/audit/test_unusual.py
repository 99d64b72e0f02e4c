"""Whatever a program holds, the audit reads it or leaves it alone; what one backend lacks costs no other its report."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amp_checks import backends
from amp_checks.audit import AuditCase, Severity, Training, audit
from amp_checks.audit.watching import readable
from amp_checks.cli.audit import add_arguments, main
from amp_checks.core import UsageError

PLAIN = torch.tensor([[0.0, 2.0], [-3.0, math.inf]])
KINDS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "dense": (lambda value: value, True),
    "sparse": (Tensor.to_sparse, True),
    "float16, sparse": (lambda value: value.half().to_sparse(), True),
    "compressed": (Tensor.to_sparse_csr, True),
    "complex": (lambda value: torch.complex(value, value), True),
    "8 bits": (lambda value: value.to(torch.float8_e5m2), True),
    "nested": (lambda value: torch.nested.nested_tensor(list(value)), False),
    "quantised": (lambda value: torch.quantize_per_tensor(value.clamp(max=9), 0.1, 0, torch.qint8), False),
    "without data": (lambda value: value.to("meta"), False),
}


@pytest.mark.filterwarnings("ignore")  # torch says that some of these kinds are new, or going
@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_kind_of_tensor(kind: str) -> None:
    make, read = KINDS[kind]
    finite = PLAIN.clamp(max=4.0)
    assert readable.is_finite(make(PLAIN)) is not read
    assert readable.is_finite(make(finite))
    assert not readable.is_zero(make(finite))
    assert readable.is_zero(make(torch.zeros(2, 2))) is read
    copy = readable.exact(make(finite))
    assert (copy is not None) is read
    if copy is not None:
        assert copy.dtype is torch.float64
        assert torch.equal(copy[..., 0] if kind == "complex" else copy, finite.double())


class _Wrapper:
    """As some libraries wrap an optimizer: it shows the parameter groups of the one inside."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups


def test_a_wrapper_of_an_optimizer_is_that_optimizer() -> None:
    def case(device: str, dtype: torch.dtype) -> Training:
        model = nn.Linear(4, 4).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        wrapper: Any = _Wrapper(optimizer)
        scaler = torch.amp.GradScaler(device, init_scale=256.0)

        def step(batch: Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast(device, dtype):
                loss = model(batch).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(wrapper)
            scaler.step(optimizer)
            scaler.update()

        return Training(model=model, batches=[torch.randn(2, 4).to(device) for _ in range(3)], step=step)

    report = audit(AuditCase(id="wrapped", build=case), backends.backend("cpu-float16"))
    assert report.summary["optimizers"] == "SGD"


def test_what_one_backend_lacks_costs_no_other_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "choosy.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "def case(device, dtype):\n"
        "    def loss(model, batch):\n"
        "        if device == 'cuda':\n"
        "            raise ValueError('not there')\n"
        "        return model(batch).float().mean()\n"
        "    return {'model': nn.Linear(2, 2), 'batches': [torch.randn(1, 2)], 'loss': loss}\n",
        encoding="utf-8",
    )
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(UsageError, match="raises in float32 too"):
        main(parser.parse_args([f"{file}:case"]))
    said = capsys.readouterr()
    assert "under cpu-float16" in said.out
    assert "under cpu-bfloat16" in said.out
    assert "note: under emulated-cuda-float16: the case" in said.err


@pytest.mark.parametrize("backend", ["cpu-float16", "emulated-cuda-bfloat16"])
def test_random_numbers_of_a_named_dtype_are_the_same_in_every_run(backend: str) -> None:
    def case(device: str, dtype: torch.dtype) -> Training:
        model = nn.Linear(8, 8).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def step(batch: Tensor) -> None:
            optimizer.zero_grad()
            drawn = torch.randn(16, 8, dtype=dtype, device=device)
            kept = torch.randn_like(drawn, dtype=dtype)
            with torch.autocast(device, dtype):
                loss = (model(batch + drawn.float()) * torch.sin(40 * kept.float())).square().mean()
            loss.backward()
            optimizer.step()

        return Training(model=model, batches=[torch.randn(16, 8).to(device) for _ in range(3)], step=step)

    report = audit(AuditCase(id="draws", build=case), backends.backend(backend))
    assert [one for one in report.diagnostics if one.severity is Severity.ERROR] == []
