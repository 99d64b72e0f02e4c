"""What a case may be, and the one clear message where it is not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from amp_checks import backends
from amp_checks.audit import AuditCase, Severity, Training, audit, load
from amp_checks.audit.convergence import compare_seeds
from amp_checks.audit.ignore import RENAMED
from amp_checks.audit.rules import IDS
from amp_checks.cli.audit import add_arguments, main
from amp_checks.core import UsageError
from amp_checks.reference import recipes
from amp_checks.reference.model import SimpleTextModel

CPU = backends.backend("cpu-float16")
EMULATED = backends.backend("emulated-cuda-float16")


def _case(build: Callable[..., Any]) -> AuditCase:
    return AuditCase(id="mine.py:case", build=build)


def _mse(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch).float(), batch.float())


def _refused(build: Callable[..., Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        audit(_case(build), CPU)


def test_loss_alone_trains_a_third_party_model_in_our_loop() -> None:
    def case(device: str) -> Training:
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
        return Training(model=model, batches=[torch.randn(2, 4, 16).to(device) for _ in range(3)], loss=_mse)

    for backend in (CPU, EMULATED):
        report = audit(_case(case), backend)
        assert [one for one in report.diagnostics if one.severity is not Severity.NOTE] == []
        assert report.summary["iterations"] == "3"


def test_step_is_given_what_its_signature_names() -> None:
    seen: list[Any] = []

    def case() -> Training:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def train_step(model: nn.Module, batch: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
            seen.append(batch)
            optimizer.zero_grad()
            _mse(model, batch).backward()
            optimizer.step()

        return Training(model=model, optimizer=optimizer, batches=[torch.randn(2, 4)], step=train_step)

    audit(_case(case), CPU)
    assert seen


def test_step_that_hard_codes_cuda_runs_under_emulation() -> None:
    def case() -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = _mse(model, batch.to("cuda"))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return {"model": model, "batches": [torch.randn(4, 8) for _ in range(3)], "step": step}

    report = audit(_case(case), EMULATED)
    assert [one for one in report.diagnostics if one.severity is not Severity.NOTE] == []
    assert int(report.summary["forward ops"].split(", ")[1].split()[0]) > 0
    assert _case(case).runs_on(EMULATED)
    assert not _case(case).runs_on(CPU)


def test_fp32_run_has_no_region_and_no_scaler() -> None:
    seen: list[tuple[bool, bool]] = []

    def case() -> Training:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                seen.append((torch.is_autocast_enabled("cpu"), scaler.is_enabled()))
                loss = _mse(model, batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return Training(model=model, batches=[torch.randn(2, 4)], step=step)

    audit(_case(case), CPU)
    assert seen[:2] == [(True, True), (False, False)]
    assert not torch.is_autocast_enabled("cpu")


def test_reference_model_raises_no_alarm() -> None:
    """The reference recipe, in the loop that the audit writes and in all default backends."""

    def case(device: str) -> Training:
        target = recipes.BITS.encode(recipes.TEXT).to(device)
        model = SimpleTextModel(target.shape[1]).to(device)

        def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return nn.functional.mse_loss(model(batch), target)

        batches = [torch.randn(1, 4).to(device) for _ in range(4)]
        return Training(model=model, batches=batches, loss=loss, optimizer=torch.optim.Adam(model.parameters(), 1e-3))

    for name in ("cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16"):
        report = audit(_case(case), backends.backend(name))
        assert [one for one in report.diagnostics if one.severity is not Severity.NOTE] == []


def test_seeds_compare_trainings() -> None:
    def case(device: str) -> Training:
        model = nn.Linear(4, 4).to(device)
        return Training(model=model, batches=[torch.randn(8, 4).to(device) for _ in range(3)], loss=_mse)

    good = audit(AuditCase(id="seeds", build=case, seeds=4), CPU)
    assert "training-differs" not in {one.rule for one in good.diagnostics}

    def worse(device: str) -> Training:
        training = case(device)

        def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return _mse(model, batch) * (2.0 if torch.is_autocast_enabled(device) else 1.0)

        return Training(model=training.model, batches=training.batches, loss=loss)

    bad = audit(AuditCase(id="seeds", build=worse, seeds=4), CPU)
    assert "training-differs" in {one.rule for one in bad.diagnostics}


def _trains_differently(*, seeds: int, raises: bool = False, alone: bool = False) -> list[str]:
    def case(device: str) -> Training:
        model = nn.Linear(4, 4).to(device)

        def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            if raises and torch.is_autocast_enabled(device):
                raise ValueError("no")
            return _mse(model, batch)

        return Training(model=model, batches=[torch.randn(8, 4).to(device) for _ in range(3)], loss=loss)

    row = AuditCase(id="few", build=case, seeds=seeds)
    told = compare_seeds(row, CPU) if alone else audit(row, CPU).diagnostics
    return [one.message for one in told if one.rule == "training-differs"]


def test_seeds_that_tell_nothing() -> None:
    said = "mean training loss, AMP against FP32: "
    assert _trains_differently(seeds=2) == [f"{said}not enough seeds to tell, over 2 seeds"]
    assert _trains_differently(seeds=3, raises=True) == []
    assert _trains_differently(seeds=3, raises=True, alone=True) == [f"{said}not finite, over 3 seeds"]


def test_what_is_no_case_gets_one_clear_message() -> None:
    model = nn.Linear(4, 4)
    batch = [torch.randn(2, 4)]
    _refused(lambda: None, r"must return an amp_checks\.audit\.Training .* it returned NoneType")
    _refused(lambda: {"step": print}, "gave no model")
    _refused(lambda: {"model": model, "stop": 1}, "unknown keys stop")
    _refused(lambda: {"model": model}, "one of step, run and loss; it gave none")
    _refused(lambda: {"model": model, "step": print, "run": print, "batches": batch}, "it gave step and run")
    _refused(lambda: {"model": model, "step": print}, "gave no batches")
    _refused(lambda: {"model": nn.ReLU(), "step": print, "batches": batch}, "no parameter that requires a gradient")
    _refused(lambda: {"model": [1], "step": print, "batches": batch}, "model must be torch modules; it holds int")
    _refused(lambda: {"model": model, "step": lambda _: None, "batches": batch}, "has no loss")
    _refused(lambda: {"model": model, "step": print, "batches": batch, "save": dict}, "save and load go together")
    _refused(lambda: 1 / 0, "raised while it was built: ZeroDivisionError")

    def step(_: Any) -> None:
        raise ValueError("no such column")

    _refused(lambda: {"model": model, "step": step, "batches": batch}, r"raises in float32 too.*no such column")


def test_loading_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is named package\.module:function"):
        load("train")
    with pytest.raises(UsageError, match="there is no module 'no_such_module'"):
        load("no_such_module:case")
    with pytest.raises(UsageError, match="there is no file"):
        load(f"{tmp_path}/none.py:case")
    file = tmp_path / "some_cases.py"
    file.write_text("def one(): ...\n", encoding="utf-8")
    with pytest.raises(UsageError, match="has no 'two'; its functions are one"):
        load(f"{file}:two")
    broken = tmp_path / "broken_case.py"
    broken.write_text("import torch\nraise OSError('disk')\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"raised OSError: disk .*broken_case\.py:2"):
        load(f"{broken}:case")
    imports = tmp_path / "imports_case.py"
    imports.write_text("import not_there_at_all\n", encoding="utf-8")
    with pytest.raises(UsageError, match="No module named 'not_there_at_all'"):
        load(f"{imports}:case")


def _main(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return main(parser.parse_args(list(arguments)))


def test_template_is_a_case_without_alarms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main("--template") == 0
    file = tmp_path / "first_case.py"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    assert _main(f"{file}:case", "--fail-on", "warning") == 0
    text = capsys.readouterr().out
    assert "under emulated-cuda-float16  (emulated" in text
    assert text.count("0 errors, 0 warnings, 0 notes") == 4


FAULTY = """
import torch

def case(device, dtype):
    model = torch.nn.Linear(4, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler(device, init_scale=256.0)

    def step(batch):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype):
            loss = model(batch.to(device)).float().square().mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return {"model": model, "batches": [torch.randn(8, 4) for _ in range(3)], "step": step}
"""


def test_faults_set_the_exit_status_and_can_be_ignored_for_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "faulty_case.py"
    file.write_text(FAULTY, encoding="utf-8")
    name = f"{file}:case"
    out = tmp_path / "out.json"
    assert _main(name, "--backend", "cpu-float16", "--json", str(out)) == 1
    text = capsys.readouterr().out
    assert "ERROR scaled-gradients-modified" in text
    assert "faulty_case.py:14" in text
    assert "remedy: call scaler.unscale_(optimizer)" in text
    document = json.loads(out.read_text(encoding="utf-8"))
    rules = {one["rule"] for one in document["audits"][0]["diagnostics"]}
    assert "scaled-gradients-modified" in rules

    ignore = tmp_path / "ignore.txt"
    lines = [f"{rule} | * | 2999-12-31 | known, ticket 12" for rule in sorted(rules)]
    ignore.write_text("# ours\n" + "\n".join(lines), encoding="utf-8")
    assert _main(name, "--backend", "cpu-float16", "--ignore", str(ignore)) == 0
    assert "ignored: known, ticket 12" in capsys.readouterr().out
    ignore.write_text("\n".join(lines).replace("2999", "2001"), encoding="utf-8")
    assert _main(name, "--backend", "cpu-float16", "--ignore", str(ignore)) == 1
    assert "ran out on 2001-12-31" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("scaler-bypassed | *", "an entry is `rule"),
        ("no-such-rule | * | 2999-01-01 | why", "there is no rule 'no-such-rule'"),
        ("never-updated | * | 2999-01-01 | why", "the rule 'never-updated' is called 'parameter-never-updated' now"),
        ("scaler-bypassed | * | soon | why", "the third field is a date"),
    ],
)
def test_a_malformed_ignore_list_gets_one_clear_message(tmp_path: Path, line: str, text: str) -> None:
    file = tmp_path / "ignore.txt"
    file.write_text(line, encoding="utf-8")
    with pytest.raises(UsageError, match=text):
        _main("no:case", "--ignore", str(file))


def test_usage_errors_come_before_any_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name a script"):
        _main()
    with pytest.raises(UsageError, match="unknown backend 'cud'"):
        _main("x.py:case", "--backend", "cud")
    with pytest.raises(UsageError, match="cannot be read"):
        _main("x.py:case", "--ignore", str(tmp_path / "none"))
    for few in ("-1", "2"):
        with pytest.raises(
            UsageError, match=f"--seeds takes a number of trainings, at least 3 for a spread, not {few}"
        ):
            _main("x.py:case", "--seeds", few)


def _faulty(batch: torch.Tensor, model: nn.Module) -> torch.Tensor:
    with torch.autocast("cpu", torch.float16):
        return _mse(model, batch) * 1e-7


def _under_closure(optimizer: torch.optim.Optimizer, model: nn.Module, batch: torch.Tensor, *, zeroed: bool) -> None:
    def closure() -> torch.Tensor:
        if zeroed:
            optimizer.zero_grad()
        loss = _faulty(batch, model)
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.LBFGS, torch.optim.SGD])
def test_what_a_closure_does_is_seen(kind: Any) -> None:
    def case(zeroed: bool) -> Training:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        optimizer = kind(model.parameters(), lr=1e-3)
        batches = [torch.randn(4, 8) for _ in range(3)]
        return Training(
            model=model, batches=batches, step=lambda batch: _under_closure(optimizer, model, batch, zeroed=zeroed)
        )

    found = {one.rule for one in audit(_case(lambda: case(zeroed=True)), CPU).diagnostics}
    assert {"loss-scaling-missing", "gradients-differ"} <= found
    assert "zero-grad-missing" not in found
    if kind is not torch.optim.LBFGS:  # which calls its closure again and again
        assert "zero-grad-missing" in {one.rule for one in audit(_case(lambda: case(zeroed=False)), CPU).diagnostics}


def test_weights_that_a_step_moves_inside_a_region_are_outdated_in_the_next_call_of_its_closure() -> None:
    def case() -> Training:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

        def step(batch: torch.Tensor) -> None:
            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = _mse(model, batch)
                loss.backward()
                return loss

            with torch.autocast("cpu", torch.bfloat16):
                optimizer.step(closure)

        return Training(model=model, batches=[torch.randn(2, 4) for _ in range(2)], step=step)

    found = audit(_case(case), backends.backend("cpu-bfloat16"))
    assert "cached-weights-outdated" in {one.rule for one in found.diagnostics}


@pytest.mark.parametrize("where", ["build", "step"])
def test_a_case_that_calls_sys_exit_is_no_pass(where: str) -> None:
    def case() -> Training:
        def step(_: torch.Tensor) -> None:
            sys.exit(0)

        if where == "build":
            sys.exit(0)
        return Training(model=nn.Linear(2, 2), batches=[torch.randn(1, 2)], step=step)

    _refused(case, "called sys.exit")


def test_a_backend_that_lacks_what_the_case_needs_leaves_the_others_their_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "graphs.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "def case(device, dtype):\n"
        "    model = nn.Linear(2, 2)\n"
        "    if device == 'cuda': torch.cuda.make_graphed_callables(model, (torch.ones(1, 2),))\n"
        "    loss = lambda model, batch: model(batch).float().mean()\n"
        "    return {'model': model, 'batches': [torch.randn(1, 2)], 'loss': loss}\n",
        encoding="utf-8",
    )
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert main(parser.parse_args([f"{file}:case"])) == 0
    said = capsys.readouterr()
    assert "under cpu-float16" in said.out
    assert "cannot be audited under emulated-cuda-float16" in said.err
    with pytest.raises(UsageError, match="--backend cpu-float16 for one"):
        main(parser.parse_args([f"{file}:case", "--backend", "emulated-cuda-float16"]))


def test_bfloat16_without_a_region_is_told() -> None:
    def case() -> Training:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            _mse(model, batch).backward()
            optimizer.step()

        return Training(model=model, batches=[torch.randn(2, 4)], step=step)

    found = audit(_case(case), backends.backend("cpu-bfloat16"))
    assert [one.rule for one in found.diagnostics] == ["autocast-never-on"]


@pytest.mark.parametrize("weight", [100, 0.25, 3.0])
def test_the_weight_of_a_loss_is_no_loss_scale(weight: float) -> None:
    def case() -> Training:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        norms: list[float] = []

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = _mse(model, batch)
            (loss * weight).backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                norms.append((parameter.grad / weight).norm().item())
            optimizer.step()

        return Training(model=model, batches=[torch.randn(2, 4)] * 2, step=step)

    assert {one.rule for one in audit(_case(case), CPU).diagnostics} == {"loss-scaling-missing"}


def test_a_mask_of_infinities_that_is_given_is_no_fault_of_the_data() -> None:
    """What is reported is the op that makes NaN of it."""

    def case() -> Training:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        mask = torch.full((2, 4), -torch.inf)

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = (model(batch) + mask).softmax(-1).float().square().mean()
            loss.backward()
            optimizer.step()

        return Training(model=model, batches=[torch.randn(2, 4)], step=step)

    errors = audit(_case(case), backends.backend("cpu-bfloat16")).failures()
    assert [(one.rule, one.op) for one in errors] == [("loss-not-finite", "aten::_softmax")]


def _in_half(device: str, dtype: torch.dtype, *, region: bool) -> Training:
    model = nn.Linear(4, 4).to(device).half()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler(device, init_scale=256.0)

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype, enabled=region):
            loss = model(batch).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return Training(model=model, batches=[torch.randn(2, 4).to(device)] * 2, step=step)


@pytest.mark.parametrize("region", [True, False])
def test_a_model_that_was_halved_by_hand_is_one_error(region: bool) -> None:
    """What is raised, be it by the scaler or where float32 inputs meet it, follows from that."""
    report = audit(_case(lambda device, dtype: _in_half(device, dtype, region=region)), CPU)
    assert [one.rule for one in report.failures()] == ["weights-in-16-bits"]
    assert "no .half()" in report.failures()[0].remedy
    raised = "program-raises" if region else "dtypes-mixed"
    assert (raised, "weights-in-16-bits") in {(one.rule, one.follows_from) for one in report.diagnostics}


def _by_grad(kind: str, *, fault: bool) -> Training:
    """A training by ``autograd.grad`` alone: an optimizer's step, a scaler's, or a functional update."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, 0.01) if kind != "functional" else None
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(batch: torch.Tensor) -> None:
        with torch.autocast("cpu", torch.float16):
            output = model(batch)
            loss = output.float().square().mean()
        gradients = torch.autograd.grad(scaler.scale(loss), parameters)
        if optimizer is None:
            if not fault and not all(bool(gradient.isfinite().all()) for gradient in gradients):
                return
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient / scaler.get_scale(), alpha=0.01)
            return
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        if fault:
            optimizer.step()
        else:
            scaler.step(optimizer)
        scaler.update()

    return Training(model=model, batches=[torch.randn(16, 8) for _ in range(4)], step=step)


@pytest.mark.parametrize(("kind", "rule"), [("optimizer", "scaler-bypassed"), ("functional", "overflow-applied")])
def test_gradients_of_autograd_grad_are_followed(kind: str, rule: str) -> None:
    healthy = audit(_case(lambda: _by_grad(kind, fault=False)), CPU)
    assert [one for one in healthy.diagnostics if one.severity is not Severity.NOTE] == []
    assert ("not judged" in healthy.summary) == (kind == "functional")
    assert "headroom, gradients unscaled" in healthy.summary
    assert rule in {one.rule for one in audit(_case(lambda: _by_grad(kind, fault=True)), CPU).failures()}


def _cast_by_decorator(*, fault: bool) -> Training:
    """The pair of torch's documentation, and a backward that opens a region of its own besides."""

    class Exponential(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(value)
            return value.exp()

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            if not fault:
                return gradient * ctx.saved_tensors[0].exp()
            with torch.autocast("cpu", torch.float16):
                return gradient * ctx.saved_tensors[0].exp()

    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            output = Exponential.apply(model(batch).tanh())  # type: ignore[no-untyped-call]
        scaler.scale(output.square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    return Training(model=model, batches=[torch.randn(16, 8) for _ in range(3)], step=step)


def test_a_forward_that_custom_fwd_takes_out_of_autocast_is_recomputed_without_it() -> None:
    healthy = audit(_case(lambda: _cast_by_decorator(fault=False)), CPU)
    assert [one for one in healthy.diagnostics if one.severity is not Severity.NOTE] == []
    (found,) = audit(_case(lambda: _cast_by_decorator(fault=True)), CPU).failures()
    assert found.rule == "recomputation-in-other-dtype"
    assert "under float16 what its forward computed under no autocast" in found.message


def test_the_new_ids_of_renamed_rules_exist_and_the_old_ones_do_not() -> None:
    assert set(RENAMED.values()) <= IDS
    assert not set(RENAMED) & IDS
