"""GPUs for parallel workers, tested with stand-ins for the machine: no GPU is needed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import execnet
import pytest

from amp_checks.pytest_plugin import devices

LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1f2e)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-3a4b)
  MIG 3g.20gb     Device  0: (UUID: MIG-aaaa)
  MIG 3g.20gb     Device  1: (UUID: MIG-bbbb)
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-5c6d)
"""


def test_a_split_gpu_counts_by_its_instances() -> None:
    assert devices.parse(LISTING) == ("0", "MIG-aaaa", "MIG-bbbb", "2")
    assert devices.parse("") == ()


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("0,1", ("0", "1")),
        (" 3 , GPU-1f2e,MIG-aaaa ", ("3", "GPU-1f2e", "MIG-aaaa")),
        ("0,-1,1", ("0",)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
    ],
)
def test_the_callers_own_list_of_devices_is_kept_to(value: str, found: tuple[str, ...]) -> None:
    assert devices.visible({"CUDA_VISIBLE_DEVICES": value}) == found


@pytest.fixture
def machine_with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ``nvidia-smi`` on the path that lists two GPUs."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable}\nprint('GPU 0: X (UUID: GPU-0)\\nGPU 1: X (UUID: GPU-1)')\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("machine_with_gpus")
def test_without_a_list_of_the_callers_the_driver_is_asked() -> None:
    assert devices.visible() == ("0", "1")


def test_without_a_driver_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices.visible() == ()


STAND_IN = '''
import os
import pytest
import sys

sys.path.insert(0, {support!r})
import torch
from stubs import StubCase, only_family

from amp_checks import backends, core
from amp_checks.backends import environment
from amp_checks.pytest_plugin import devices


def check_device(case, backend):
    """Says which device its worker was given; dies where its case says so."""
    if case.does == "abort":
        os.abort()
    if case.does == "poison":
        devices.poisoned = lambda: "CUDA error: device-side assert triggered"
    if case.does == "run out":
        core.attempt("forward", run_out)
    yield core.exact("device", actual=os.environ.get("CUDA_VISIBLE_DEVICES"), expected=None, why="stand-in") if (
        case.does == "tell"
    ) else core.exact("one", actual=1, expected=1, why="stand-in")


def run_out():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def bound(part):
    with open({bounds!r}, "a") as file:
        file.write(f"{{part}}\\n")


def install(cases):
    only_family(cases, check_device)
    backends.why_unavailable = {lacking!r}.get
    torch.cuda.set_per_process_memory_fraction = bound
    environment._devices = list
    found = environment.describe()
    environment.describe_elsewhere = lambda: found
    devices.poisoned = lambda: None


install([StubCase(id=f"{{n}}", does=does) for n, does in enumerate({does!r})])


def pytest_configure(config):
    if not hasattr(config, "workerinput") and os.environ.get("COUNT_WORKERS"):
        config.pluginmanager.register(Count())


class Count:
    def pytest_testnodeready(self, node):
        print("worker on", node.gateway.spec.env.get("CUDA_VISIBLE_DEVICES"))
'''


def run_with_stand_in(
    pytester: pytest.Pytester, does: list[str], *arguments: str, lacking: dict[str, str] | None = None
) -> pytest.RunResult:
    support = str(Path(__file__).parents[1] / "support")
    pytester.makepyfile(
        stand_in=STAND_IN.format(
            support=support, does=does, lacking=lacking or {}, bounds=str(pytester.path / "bounds")
        )
    )
    pytester.syspathinsert()
    pytester._monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    pytester._monkeypatch.setenv("COUNT_WORKERS", "1")
    return pytester.runpytest_subprocess(
        *("-p", "stand_in", "-p", "no:hypothesispytest", "--pyargs", "amp_checks", "--amp-require-cuda"), *arguments
    )


@pytest.mark.usefixtures("machine_with_gpus")
def test_auto_means_one_worker_for_each_gpu_each_with_its_own(pytester: pytest.Pytester) -> None:
    done = run_with_stand_in(pytester, ["tell"] * 8, "-n", "auto", "--amp-backend", "cuda-float16")
    told = [line for line in done.outlines if line.startswith("worker on")]
    assert sorted(told) == ["worker on 0", "worker on 1"]
    seen = {line.split()[2].rstrip(",") for line in done.outlines if line.strip().startswith("device = ")}
    assert seen == {"0", "1"}


@pytest.mark.usefixtures("machine_with_gpus")
def test_the_callers_number_of_workers_wins(pytester: pytest.Pytester) -> None:
    pytester._monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "3")
    done = run_with_stand_in(pytester, ["pass"] * 6, "-n", "auto", "--amp-backend", "cuda-float16")
    assert done.ret == 0
    assert sorted(line for line in done.outlines if line.startswith("worker on")) == [
        "worker on 0",
        "worker on 0",
        "worker on 1",
    ]
    # Two of the three share a device, and its memory; the third has one to itself.
    assert (pytester.path / "bounds").read_text(encoding="utf-8").split() == ["0.45"] * 2


def specs_of(workers: int) -> list[execnet.XSpec]:
    return [execnet.XSpec("popen") for _ in range(workers)]


def shares(specs: list[execnet.XSpec]) -> list[tuple[object, object]]:
    return [(spec.env.get("CUDA_VISIBLE_DEVICES"), spec.env.get("AMP_CHECKS_DEVICE_SHARE")) for spec in specs]


def test_workers_divide_the_memory_of_a_device_that_they_share() -> None:
    alone, crowded, unknown = specs_of(2), specs_of(5), specs_of(2)
    devices.assign(alone, ("0", "GPU-1"))
    assert shares(alone) == [("0", None), ("GPU-1", None)]
    devices.assign(crowded, ("0", "1"))
    assert shares(crowded) == [("0", "0.300"), ("1", "0.450"), ("0", "0.300"), ("1", "0.450"), ("0", "0.300")]
    devices.assign(unknown, ())
    assert shares(unknown) == [(None, "0.450"), (None, "0.450")]


def test_a_list_for_rocm_is_kept_to_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2,3")
    assert devices.visible() == ("2", "3")
    workers = specs_of(2)
    devices.assign(workers, devices.visible())
    assert [spec.env for spec in workers] == [{"HIP_VISIBLE_DEVICES": "2"}, {"HIP_VISIBLE_DEVICES": "3"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert devices.visible() == ("7",)


@pytest.mark.usefixtures("machine_with_gpus")
@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_an_item_that_runs_out_of_memory_is_an_error_and_the_others_finish(
    pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    done = run_with_stand_in(
        pytester, ["pass", "run out", "pass"], *workers, "--amp-backend", "cuda-float16", "--amp-json", "out.json"
    )
    assert done.ret == 3
    done.stdout.fnmatch_lines(
        ["check_device-1-cuda-float16: error", "  out of memory, so nothing can be said: CUDA out of memory.*"]
    )
    written = json.loads((pytester.path / "out.json").read_text(encoding="utf-8"))
    assert [entry["status"] for entry in written["results"]] == ["passed", "error", "passed"]
    assert written["complete"]


@pytest.mark.usefixtures("machine_with_gpus")
@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_gpu_without_native_bfloat16_is_checked_in_float16_and_the_run_says_so(
    pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    lacking = {"cuda-bfloat16": "Tesla T4 has no native bfloat16"}
    done = run_with_stand_in(pytester, ["pass"], *workers, "--amp-report-dir", "report", lacking=lacking)
    assert done.ret == 0
    done.stdout.fnmatch_lines(["backends: cuda-float16", "*ran 1 of 1 CUDA items*"])
    told = "cuda-bfloat16 is not run: Tesla T4 has no native bfloat16"
    assert [line for line in done.outlines if told in line] == [told, f"amp-checks: note: {told}"]
    named = run_with_stand_in(pytester, ["pass"], *workers, "--amp-backend", "cuda-bfloat16", lacking=lacking)
    assert named.ret == 4
    assert any("cuda-bfloat16 cannot run: Tesla T4 has no native bfloat16" in line for line in named.errlines)


@pytest.mark.usefixtures("machine_with_gpus")
@pytest.mark.parametrize("does", ["abort", "poison"])
def test_an_item_that_takes_its_worker_down_is_named_and_the_others_finish_on_the_same_device(
    pytester: pytest.Pytester, does: str
) -> None:
    done = run_with_stand_in(
        pytester, ["pass", does, "pass", "pass"], "-n", "1", "--amp-backend", "cuda-float16", "--amp-json", "out.json"
    )
    assert done.ret == 3
    done.stdout.fnmatch_lines(
        ["check_device-1-cuda-float16: error", "  the worker process died while this item ran*", "*3 passed*"]
    )
    assert [line for line in done.outlines if line.startswith("worker on")] == ["worker on 0", "worker on 0"]
    if does == "poison":
        assert any("left the CUDA context unusable: CUDA error" in line for line in done.errlines + done.outlines)


def test_a_poisoned_context_ends_a_run_without_workers(pytester: pytest.Pytester) -> None:
    done = run_with_stand_in(pytester, ["pass", "poison", "pass"], "--amp-backend", "cuda-float16")
    assert done.ret == 3
    done.stdout.fnmatch_lines(["*check_device-1-cuda-float16 left the CUDA context unusable*"])


def test_another_projects_auto_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester._monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "1")
    pytester.makepyfile("import os\ndef test_device():\n    assert 'CUDA_VISIBLE_DEVICES' not in os.environ\n")
    pytester._monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    done = pytester.runpytest_subprocess("-n", "auto", "-p", "no:hypothesispytest")
    done.assert_outcomes(passed=1)
