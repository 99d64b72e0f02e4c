from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from amp_checks import backends
from amp_checks.core import Raised
from amp_checks.reference import loop
from amp_checks.reference.loop import Learner, Task, Turn, Validation
from amp_checks.reference.recipes import AS_PUBLISHED, REFERENCE, TEXT

FLOAT16 = backends.backend("cpu-float16")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def line(*, accumulate: int = 1, clip_norm: float | None = None, factor: float = 1.0, steps: int = 3) -> Task:
    """One weight, w, from 0; loss ``factor * (w - step - micro)``: its gradient is ``factor``."""

    def build(_: str) -> Learner:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)

        def loss(step: int, micro: int) -> torch.Tensor:
            return factor * (model.weight.sum() - step - micro)

        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        turn = Turn(optimizer=optimizer, loss=loss, accumulate=accumulate, clip_norm=clip_norm)
        return Learner(
            model=model,
            turns=(turn,),
            validate=lambda: Validation(loss=model.weight.item(), metric=float(model.training)),
        )

    return Task(id="line", build=build, steps=steps)


def trained(task: Task, *, amp: bool = False, seed: int = 0) -> loop.Trajectory:
    precision = task.amp(FLOAT16) if amp else loop.fp32("cpu")
    return loop.train(task, precision=precision, device="cpu", seed=seed)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    first, again, other = trained(REFERENCE), trained(REFERENCE), trained(REFERENCE, seed=1)

    assert first.losses == again.losses
    assert first.losses != other.losses


def test_precisions_share_weights_and_data() -> None:
    full, mixed = trained(REFERENCE), trained(REFERENCE, amp=True)

    assert full.before == mixed.before
    assert full.losses != mixed.losses
    assert full.losses[0] == pytest.approx(mixed.losses[0], rel=1e-3)


def test_the_global_random_state_comes_back() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    trained(REFERENCE)

    assert torch.equal(before, torch.get_rng_state())


def test_micro_batches_are_averaged() -> None:
    run = trained(line(accumulate=2))

    # Losses: w - step - micro, mean over micro 0 and 1; w falls by 1 a step.
    assert run.losses == (-0.5, -2.5, -4.5)
    assert run.after.loss == -3.0


def test_gradients_are_clipped_after_they_are_unscaled() -> None:
    for amp in (False, True):
        run = trained(line(clip_norm=0.25, factor=2.0), amp=amp)
        assert run.after.loss == pytest.approx(-0.75, rel=1e-5)
        # What the optimizer sees is the clipped gradient.
        assert run.first_gradients["weight"].item() == pytest.approx(0.25, rel=1e-5)


def test_validation_is_in_eval_mode_and_training_is_not() -> None:
    run = trained(line())

    assert (run.before.metric, run.after.metric) == (0.0, 0.0)
    assert run.learner.model.training


def test_skipped_steps_and_backoffs_are_counted() -> None:
    run = trained(line(factor=1e38, steps=5), amp=True)

    # 1e38 times 65536 overflows float32 (its largest is 3.4e38); 1e38 times 2 does not: 15 halvings are
    # needed. sert run.ran == (False,) * 5
    assert len(run.skips) == run.backoffs == 5
    assert run.scales == (65536.0, 32768.0, 16384.0, 8192.0, 4096.0, 2048.0)
    assert run.first_gradients == {}


def test_progress_hears_of_each_step() -> None:
    heard: list[tuple[int, float]] = []
    run = loop.train(
        line(), precision=loop.fp32("cpu"), device="cpu", seed=0, progress=lambda *args: heard.append(args)
    )

    assert heard == list(enumerate(run.losses, start=1))


def test_an_exception_in_the_forward_pass_names_the_step() -> None:
    def build(device: str) -> Learner:
        learner = line().build(device)

        def fails(_step: int, _micro: int) -> torch.Tensor:
            message = "no such kernel"
            raise RuntimeError(message)

        turn = Turn(optimizer=learner.turns[0].optimizer, loss=fails)
        return Learner(model=learner.model, turns=(turn,), validate=learner.validate)

    with pytest.raises(Raised, match="forward, step 0: RuntimeError: no such kernel"):
        trained(Task(id="fails", build=build, steps=1))


@pytest.mark.parametrize("name", ["cpu-float16", "cpu-bfloat16", "emulated-cuda-float16", "emulated-cuda-bfloat16"])
def test_the_reference_says_the_text_in_every_precision(name: str) -> None:
    backend = backends.backend(name)
    with backend.activate():
        run = loop.train(REFERENCE, precision=REFERENCE.amp(backend), device=backend.device_type, seed=0)
        speak = run.learner.speak
        assert speak is not None
        with torch.no_grad():
            assert speak() == TEXT


@pytest.mark.parametrize("name", ["cpu-float16", "emulated-cuda-float16"])
def test_as_published_skips_16_of_100_steps_and_learns_nothing(name: str) -> None:
    backend = backends.backend(name)
    with backend.activate():
        run = loop.train(AS_PUBLISHED, precision=AS_PUBLISHED.amp(backend), device=backend.device_type, seed=0)

    assert len(run.skips) == 16
    assert run.scales[-1] == 1.0
    assert f"{run.losses[0]:.4g}" == "7.128e+08"
    assert min(run.losses) > 7.127e8


def test_plain_training_is_the_same_under_emulation() -> None:
    """What lets FP32 runs be shared between a CPU and the devices emulated on it."""
    plain = trained(REFERENCE)
    with backends.backend("emulated-cuda-float16").activate():
        emulated = trained(REFERENCE)

    assert plain.losses == emulated.losses
    assert plain.after == emulated.after
