from __future__ import annotations

import pytest
import torch

from amp_checks import backends
from amp_checks.families.convergence.cases import CASES
from amp_checks.reference import datasets, digits, language, loop, scaling
from amp_checks.reference.memory import bytes_for_backward


def test_digits_are_those_of_the_record() -> None:
    images, labels = datasets.digits()

    assert images.shape == (1797, 64)
    assert (images.min().item(), images.max().item()) == (0.0, 1.0)
    # As counted by scikit-learn's own description of the set.
    assert torch.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_characters_are_numbered_without_gaps() -> None:
    text, alphabet = datasets.characters()

    assert sorted(set(text.tolist())) == list(range(alphabet))
    assert len(text) > 5 * datasets.TEXT_HELD_OUT


def test_batches_cover_all_rows_once_and_start_again() -> None:
    torch.manual_seed(0)
    batches = datasets.Batches(10, 3)
    first_round = torch.cat([batches(number) for number in range(3)]).tolist()

    assert len(set(first_round)) == 9
    assert torch.equal(batches(3), batches(0))


def test_embedding_gradients_are_sparse() -> None:
    torch.manual_seed(0)
    learner = language.SPARSE.build("cpu")
    learner.turns[0].loss(0, 0).backward()
    gradient = learner.model.get_parameter("embedding.weight").grad

    assert gradient is not None
    assert gradient.is_sparse


def test_attention_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    model = language.Transformer(8).eval()
    x = torch.randint(8, (1, 10))
    changed = x.clone()
    changed[0, 6:] = (x[0, 6:] + 1) % 8
    with torch.no_grad():
        before, after = model(x), model(changed)

    assert torch.equal(before[0, :6], after[0, :6])
    assert not torch.equal(before[0, 6:], after[0, 6:])


@pytest.mark.parametrize("scaled", [True, False])
def test_float16_learns_from_tiny_gradients_only_with_a_scaled_loss(scaled: bool) -> None:
    """What GradScaler is for: without it the loss does not move at all."""
    backend = backends.backend("emulated-cuda-float16")
    with backend.activate():
        run = loop.train(
            scaling.UNDERFLOW, precision=loop.amp(backend, scaled=scaled), device=backend.device_type, seed=0
        )
    share = run.after.loss / run.before.loss

    assert share < 0.3 if scaled else share == 1.0


def test_overflow_costs_the_first_steps_and_no_more() -> None:
    backend = backends.backend("emulated-cuda-float16")
    with backend.activate():
        run = loop.train(scaling.OVERFLOW, precision=scaling.OVERFLOW.amp(backend), device=backend.device_type, seed=0)

    assert run.skips == frozenset(range(7))
    assert run.scales[-1] == 65536.0 / 2**7
    assert run.after.loss / run.before.loss < 0.3


def test_leaving_steps_out_is_what_a_skip_does() -> None:
    """An AMP run without AMP: its scaler skips by itself, and the FP32 run is told to."""
    overflow = scaling.OVERFLOW
    skipping = loop.train(overflow, precision=_scaled_fp32(), device="cpu", seed=0)
    assert skipping.skips
    left_out = loop.train(overflow, precision=loop.fp32("cpu"), device="cpu", seed=0, leave_out=skipping.skips)

    assert left_out.skips == skipping.skips
    # Scaling by powers of two is exact in float32.
    assert left_out.losses == skipping.losses


def _scaled_fp32() -> loop.Precision:
    plain = loop.fp32("cpu")
    # 2e38 times gradients of a few units overflows float32.
    return loop.Precision(
        name="FP32, scaled",
        region=plain.region,
        scaler=lambda: torch.amp.GradScaler("cpu", init_scale=2.0**127),
        scaled=True,
    )


def test_bytes_for_backward_are_counted_exactly() -> None:
    def build(_: str) -> loop.Learner:
        model = torch.nn.Linear(8, 4, bias=False)
        x = torch.ones(16, 8)

        def loss(_step: int, _micro: int) -> torch.Tensor:
            # linear keeps x (16 x 8), and not the weight, as x needs no gradient; square keeps its input (16 x 4).
            out: torch.Tensor = model(x).square().sum()
            return out

        turn = loop.Turn(optimizer=torch.optim.SGD(model.parameters()), loss=loss)
        return loop.Learner(model=model, turns=(turn,), validate=lambda: loop.Validation(loss=0.0, metric=0.0))

    full = bytes_for_backward(build, precision=loop.fp32("cpu"), device="cpu")
    assert full == 4 * 16 * 8 + 4 * 16 * 4
    mixed = bytes_for_backward(build, precision=loop.amp(backends.backend("cpu-bfloat16")), device="cpu")
    assert mixed == 2 * 16 * 8 + 2 * 16 * 4


@pytest.mark.parametrize("numerics", ["native", "float32"])
def test_the_emulations_arithmetic_does_not_change_the_count(numerics: str) -> None:
    """Arithmetic inside in float32 must not be seen as kept: a half kernel would keep halves."""
    backend = backends.emulated("cuda", "float16", numerics=numerics)
    with backend.activate():
        kept = bytes_for_backward(digits.CNN.build, precision=loop.amp(backend), device="cuda")

    assert kept == 112340


def test_ids_of_tasks_are_unique() -> None:
    ids = [case.id for case in CASES]
    assert len(ids) == len(set(ids))
