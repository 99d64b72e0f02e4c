"""Recorded cast policies: read, chosen by version, complete for the torch that runs, compared."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from amp_checks import backends
from amp_checks.cli import policy, policy_diff
from amp_checks.core import DEVICE_TYPES, CastPolicy, SuiteError, UsageError
from amp_checks.families.ops import observed
from amp_checks.families.ops.cases import OVERLOADS
from amp_checks.records import cast_policy, fixtures, known_defects

GOOD = {
    "torch": "9.9.0",
    "source": {"cuda": "made up"},
    "policy": {"cuda": {"fp32": ["exp"], "promote": ["dot"]}},
    "cuda_build_only": {"cuda": {"lower_precision_fp": ["_cudnn_rnn"]}},
}


def _asked(*, backend: list[str], json: str | None) -> argparse.Namespace:
    return argparse.Namespace(backend=backend, json=json, unsupported=False, fresh=False, collectives=False)


def written(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "torch-9.9.0.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_a_table_is_read_with_the_rules_of_a_cuda_build_apart(tmp_path: Path) -> None:
    table = cast_policy.load(written(tmp_path, GOOD))
    assert table.of("cuda", cuda_build=False) == {"exp": CastPolicy.FP32, "dot": CastPolicy.PROMOTE}
    assert table.of("cuda", cuda_build=True)["_cudnn_rnn"] is CastPolicy.LOWER_PRECISION_FP
    assert table.of("hpu", cuda_build=True) == {}


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ("{", "cannot be read as a table"),
        ([], "found list"),
        ({**GOOD, "extra": 1}, "exactly"),
        ({**GOOD, "source": {}}, "needs its source"),
        ({**GOOD, "policy": {"cuda": {"fp16": ["exp"]}}}, "cuda: unknown policy 'fp16'"),
        ({**GOOD, "policy": {"cuda": {"unlisted": ["exp"]}}}, "cuda: unknown policy 'unlisted'"),
        ({**GOOD, "policy": {"cuda": {"fp32": ["exp"], "promote": ["exp"]}}}, "duplicate op 'exp'"),
        ({**GOOD, "policy": {"cuda": {"fp32": "exp"}}}, "cuda: fp32: expected a list"),
        ({**GOOD, "policy": {"cuda": ["exp"]}}, "expected policies"),
        ({**GOOD, "policy": {"abacus": {}}, "source": {"abacus": ""}}, "unknown device type 'abacus'"),
    ],
)
def test_a_malformed_table_says_what_is_wrong_and_where(tmp_path: Path, document: Any, told: str) -> None:
    path = written(tmp_path, document)
    with pytest.raises(SuiteError, match=r"torch-9\.9\.0\.json") as raised:
        cast_policy.load(path)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("version", "chosen"),
    [
        ("2.13.0+cpu", "2.13.0"),
        ("2.13.0a0+gitabc", "2.13.0"),
        ("2.12.1", "2.11.0"),
        ("2.10.0", "2.11.0"),
        ("2.99.0", "2.15.0"),
    ],
)
def test_a_version_takes_the_newest_table_before_it(version: str, chosen: str) -> None:
    assert cast_policy.table_for(version).torch == chosen


def test_every_recorded_rule_of_every_version_has_a_row() -> None:
    for version, table in cast_policy.recorded().items():
        for device in DEVICE_TYPES:
            assert set(table.of(device, cuda_build=True)) <= set(OVERLOADS), f"{version} {device}"


def test_the_torch_that_runs_registers_exactly_what_is_recorded() -> None:
    for device in DEVICE_TYPES:
        assert cast_policy.registered(device) == set(cast_policy.declared(device)), device


@pytest.mark.parametrize("backend", backends.one_per_device_type(), ids=lambda backend: backend.id)
def test_every_rule_is_seen_to_do_what_is_recorded(backend: Any) -> None:
    found = observed.rules(backend)
    assert [rule for rule in found if not rule.agrees] == []
    assert {rule.op for rule in found if rule.observed is None} == {rule.op for rule in found if rule.unseen}
    assert len(found) == len(cast_policy.declared(backend.device_type))


def test_policy_prints_full_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    assert policy.main(_asked(backend=["cpu-bfloat16"], json=None)) == 0
    last = capsys.readouterr().out.splitlines()
    count = len(cast_policy.declared("cpu"))
    assert any(line.split() == ["cpu-bfloat16", "all", *[str(count)] * 3, "100", "%"] for line in last)


def test_policy_names_a_known_defect_and_counts_it_as_no_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = backends.backend("emulated-cuda-bfloat16")
    seen = observed.Rule(
        op="_cudnn_rnn", declared=CastPolicy.LOWER_PRECISION_FP, registered=True, observed=CastPolicy.UNLISTED
    )
    monkeypatch.setattr(observed, "rules", lambda backend: (seen,))
    asked = _asked(backend=[backend.id], json=None)
    defects = known_defects.load(fixtures.fixture("known_defects") / "ops.json")
    for known, status, told in ((defects, 0, "known defect cudnn-rnn-rule on"), ((), 1, "DIFFERS")):
        monkeypatch.setattr(known_defects, "registered", lambda known=known: known)
        assert policy.main(asked) == status
        assert f"{told} {backend.id}: _cudnn_rnn: declared lower_precision_fp" in capsys.readouterr().out


def test_policy_refuses_an_unknown_backend() -> None:
    with pytest.raises(UsageError, match="unknown backend 'abacus'"):
        policy.main(_asked(backend=["abacus"], json=None))


def test_the_difference_of_two_recorded_versions() -> None:
    found = policy_diff.changes(policy_diff.side("2.13.0"), policy_diff.side("2.14.1"))
    assert {(c.device_type, c.op, c.before, c.after) for c in found} == {
        ("cuda", "linalg_matrix_sqrth", "unlisted", "fp32"),
        ("cpu", "linalg_matrix_sqrth", "unlisted", "fp32"),
        ("cpu", "qr", "fp32", "unlisted"),
        ("cpu", "cholesky", "fp32", "unlisted"),
    }
    assert policy_diff.changes(policy_diff.side("2.14.1"), policy_diff.side("2.15.0")) == ()


def test_a_saved_table_compares_with_the_recorded_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "now.json"
    policy.main(_asked(backend=["cpu-float16"], json=str(file)))
    capsys.readouterr()
    version = cast_policy.table_for(torch.__version__).torch
    policy_diff.main(argparse.Namespace(old=str(file), new=version, format="text", output=None))
    out = capsys.readouterr().out
    assert ": 0 changes" in out
    assert "not compared, known to one side only: cuda, maia, mps, mtia, xpu" in out


def test_the_difference_as_markdown_and_json(tmp_path: Path) -> None:
    for name in ("markdown", "json"):
        out = tmp_path / name
        policy_diff.main(argparse.Namespace(old="2.13.0", new="2.14.1", format=name, output=str(out)))
    assert "| cpu | `qr` | fp32 | unlisted |" in (tmp_path / "markdown").read_text().splitlines()
    assert len(json.loads((tmp_path / "json").read_text())["changes"]) == 4


@pytest.mark.parametrize("name", ["9.9", "no/such/file"])
def test_the_difference_refuses_what_is_no_table(name: str) -> None:
    with pytest.raises(UsageError, match=r"those are 2\.11\.0"):
        policy_diff.side(name)


def test_the_difference_refuses_another_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no file that amp-checks policy --json wrote"):
        policy_diff.side(str(written(tmp_path, {"schema": "amp_checks/results"})))


def test_rules_that_other_libraries_register_for_their_own_ops_are_not_torchs() -> None:
    library = torch.library.Library("amp_checks_policy_tests", "DEF")
    library.define("another(Tensor x) -> Tensor")
    rules = torch.library.Library("amp_checks_policy_tests", "IMPL")
    rules.impl("another", torch.library.fallthrough_kernel, "AutocastCUDA")
    try:
        assert cast_policy.registered("cuda") == set(cast_policy.declared("cuda"))
    finally:
        rules._destroy()
        library._destroy()
