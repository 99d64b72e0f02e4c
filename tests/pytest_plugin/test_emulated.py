"""The fixture ``emulated_cuda`` in a user's tests."""

from __future__ import annotations

import pytest

TESTS = """
import pytest
import torch
from torch import nn


def train(device):
    model = nn.Linear(4, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cuda")
    before = model.weight.detach().clone()
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            out = model(torch.ones(2, 4, device=device))
        assert out.dtype is torch.float16
        scaler.scale(out.float().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(model.weight, before) is (factor != 1.0)
    assert scaler.get_scale() == 2.0**15


def test_one(emulated_cuda):
    assert torch.cuda.is_available()
    train(emulated_cuda)


@pytest.mark.emulated_cuda(numerics="native")
def test_native(emulated_cuda):
    train("cuda:0")


def test_outside():
    assert torch.cuda.is_available() is WAS


WAS = torch.cuda.is_available()
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "two workers"])
def test_a_users_test_trains_in_float16_and_skips_steps(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_subprocess(*workers, "--strict-markers", "-p", "no:randomly")
    done.assert_outcomes(passed=3)


def test_a_marker_that_asks_for_something_else_fails_in_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n@pytest.mark.emulated_cuda(numerics='wide')\ndef test_it(emulated_cuda):\n    pass\n"
    )
    done = pytester.runpytest_subprocess()
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*write the marker emulated_cuda(numerics='float32'), or 'native'*"])
    assert "Traceback" not in done.stdout.str()


def test_it_is_listed_among_the_fixtures(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest_subprocess("--fixtures", "--markers")
    assert "emulated_cuda" in done.stdout.str()
