"""Sizes of 16-bit values, and what an audit saw module by module."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from amp_checks import backends, cli
from amp_checks.audit import AuditCase, Training, audit
from amp_checks.audit.modules import ModuleFacts
from amp_checks.audit.watching import magnitudes
from amp_checks.cli.audit import add_arguments, main
from amp_checks.core import SuiteError, UsageError
from amp_checks.report import FORMATS, files, merging, reading

HALF = torch.float16


def test_sizes_of_known_numbers() -> None:
    found = magnitudes.of(torch.tensor([0.0, -0.0, 2.0**-24, -(2.0**-14), 1.0, 65504.0, -torch.inf, torch.nan]), HALF)
    assert found is not None
    assert (found.count, found.zeros, found.subnormal, found.saturated) == (8, 2, 1, 3)
    assert (found.least, found.greatest) == (2.0**-24, 65504.0)
    assert (found.bits_to_overflow, found.bits_to_zero) == (0.0, 0.0)


def test_headroom_is_counted_in_doublings_of_the_dtype() -> None:
    half, brain = (magnitudes.of(torch.tensor([4.0, -0.5]), dtype) for dtype in (HALF, torch.bfloat16))
    assert half is not None
    assert brain is not None
    assert half.bits_to_overflow == math.log2(65504 / 4)
    assert half.bits_to_zero == 23.0
    assert brain.bits_to_zero == 132.0
    assert half.describe().startswith("14.0 bits below 65504, 23.0 above 6e-8; 0.00% zero")
    with pytest.raises(TypeError, match="cannot be added"):
        half + brain


@given(st.lists(st.floats(width=16), min_size=1, max_size=40), st.sampled_from([HALF, torch.bfloat16]))
def test_bits_tell_what_values_tell(values: list[float], dtype: torch.dtype) -> None:
    cast = torch.tensor(values).to(dtype)
    info = torch.finfo(dtype)
    sizes = torch.where(cast == info.min, 1.0, cast.abs().double())  # a mask's value is no size
    kept = sizes[cast != info.min].tolist()
    found = magnitudes.of(cast, dtype)
    assert found is not None
    assert found.zeros == int((sizes == 0).sum())
    assert found.subnormal == int(((sizes > 0) & (sizes < info.smallest_normal)).sum())
    assert found.saturated == len(values) - int((sizes < info.max).sum())
    assert found.greatest == max((size for size in kept if math.isfinite(size)), default=0.0)
    assert found.least == min((size for size in kept if size > 0 and math.isfinite(size)), default=math.inf)


def test_nothing_has_no_sizes_and_zeros_have_no_headroom() -> None:
    assert magnitudes.of(torch.empty(0), HALF) is None
    zeros = magnitudes.of(torch.zeros(3), HALF)
    assert zeros is not None
    assert zeros.describe() == "all zero"


class _Net(nn.Module):
    """A layer, one whose output is large, and a parameter of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Linear(8, 8)
        self.large = nn.Linear(8, 8)
        self.offset = nn.Parameter(torch.zeros(8))
        with torch.no_grad():
            self.large.weight.mul_(2.0**12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.large(self.small(x)) + self.offset
        return out


def build(device: str, dtype: torch.dtype) -> Training:
    model = _Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**4, enabled=dtype is HALF)

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype):
            loss = model(batch).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return Training(model=model, step=step, batches=[torch.randn(4, 8).to(device) for _ in range(2)])


def _rows(backend: str) -> dict[str, ModuleFacts]:
    report = audit(AuditCase(id="net", build=build), backends.backend(backend))
    return {row.path: row for row in report.modules}


@pytest.mark.parametrize("backend", ["cpu-float16", "emulated-cuda-float16", "cpu-bfloat16"])
def test_modules_are_told_apart(backend: str) -> None:
    rows = _rows(backend)
    assert list(rows)[:3] == ["small", "large", "_Net"]
    small, large = rows["small"].activations, rows["large"].activations
    assert small is not None
    assert large is not None
    assert large.bits_to_overflow < small.bits_to_overflow - 8
    assert rows["small"].low_ops >= 1
    own = rows["_Net"].gradients
    assert own is not None
    assert own.count == 8


def test_gradients_are_shown_with_and_without_the_loss_scale() -> None:
    large = _rows("cpu-float16")["large"]
    assert large.gradients is not None
    assert large.scaled is not None
    assert large.gradients.greatest * 2**4 == large.scaled.greatest
    unscaled = _rows("cpu-bfloat16")["large"]
    assert unscaled.gradients == unscaled.scaled


def _audited(tmp_path: Path, *options: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    file = tmp_path / "audit.json"
    name = f"{__file__}:build"
    main(parser.parse_args([name, "--backend", "cpu-float16", "--json", str(file), *options]))
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def test_the_table_by_module_is_printed_and_in_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = _audited(tmp_path, "--modules")
    out = capsys.readouterr().out
    assert "by module" in out
    assert "gradients, unscaled:" in out
    modules = content["audits"][0]["modules"]
    assert [row["path"] for row in modules][:3] == ["small", "large", "_Net"]
    assert modules[1]["activations"]["dtype"] == "float16"


def test_audits_join_a_report_or_stand_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2", reason="the optional extra `report` is not installed")
    pytest.importorskip("matplotlib", reason="the optional extra `report` is not installed")
    page = tmp_path / "page.html"
    content = _audited(tmp_path, "--html", str(page))
    capsys.readouterr()
    document = reading.from_values(content, name="audit.json")
    assert page.read_text(encoding="utf-8") == FORMATS["html"].render(document)
    assert cli.entry(["report", str(tmp_path / "audit.json"), "--format", "html", "-o", str(tmp_path / "b.html")]) == 0
    assert cli.entry(["report", str(tmp_path / "audit.json"), "--format", "junit"]) == 4
    assert "is made of results, and there are none" in capsys.readouterr().err
    with pytest.raises(UsageError, match="html, json"):
        FORMATS["markdown"].render(document)


def test_audits_and_results_are_merged(tmp_path: Path) -> None:
    from documents import RESULTS, audits, document

    wrong = {"severity": "error", "ignored": None}
    found = audits([{"case": "mine", "backend": "cpu-float16", "diagnostics": [wrong]}])
    whole = merging.merge([document(RESULTS), found])
    assert whole.problems == ["the audit of mine under cpu-float16 found 1 errors"]
    assert whole.audits == found.audits
    assert len(whole.results) == len(RESULTS)
    with pytest.raises(SuiteError, match="holds no results"):
        found.only_results()
    assert merging.merge([found, found]).audits == [*found.audits, *found.audits]
    file = tmp_path / "broken.json"
    files.write_text(file, FORMATS["json"].render(found))
    assert cli.entry(["report", str(file), "--format", "html"]) == 4
