"""Stories about a scaler over many steps: interrupted training, growth to the end of float32."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from amp_checks.core import Backend, Finding, attempt, exact
from amp_checks.families.scaler import others
from amp_checks.families.scaler.calls import StoryCase
from amp_checks.families.scaler.optimizers.training import difference
from amp_checks.families.scaler.stories.calls import leaf_of
from amp_checks.families.scaler.stories.resume import STEPS, STOP, Run, flat, in_new_process


def check_resume(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Parameters, optimizer state, scale and tracker at the end, and some proof that the run was an eventful one."""
    whole = Run(backend).train(0, STOP)
    saved = whole.scaler.state_dict()
    yield exact("scale where it is interrupted", actual=saved["scale"], expected=512.0, why="one skip")
    yield exact("tracker where it is interrupted", actual=saved["_growth_tracker"], expected=2, why="two since")
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, result = Path(folder) / "checkpoint.pt", Path(folder) / "result.pt"
        torch.save(whole.checkpoint(), checkpoint)
        if case.variant == "new process":
            in_new_process(backend, checkpoint, result)
            resumed = torch.load(result, weights_only=True)
        else:
            loaded = Run(backend).load(torch.load(checkpoint, weights_only=True))
            resumed = loaded.train(STOP, STEPS).checkpoint()
    expected, actual = flat(whole.train(STOP, STEPS).checkpoint()), flat(resumed)
    for name in sorted(expected.keys() | actual.keys()):
        found = difference(actual.get(name), expected.get(name))
        yield exact(name, actual=found or "the same", expected="the same", why=case.source)


def check_growth_is_capped(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Four clean steps from 2^126, doubling each time: the scale stays finite, and the steps go on."""
    with others.gloo() if case.variant else contextlib.nullcontext():
        make = others.factory(case.variant) if case.variant else backend.grad_scaler
        scaler = attempt("GradScaler(...)", make, backend.device_type, init_scale=2.0**126, growth_interval=1)
        leaf = leaf_of(backend, 1.0)
        optimizer = torch.optim.SGD([leaf], lr=1e29)
        for number in range(4):
            optimizer.zero_grad()
            attempt("scaler.scale", scaler.scale, leaf.sum() * 1e-30).backward()
            attempt("scaler.step", scaler.step, optimizer)
            attempt("scaler.update", scaler.update)
            finite = math.isfinite(scaler.get_scale())
            yield exact(f"the scale is finite after step {number}", actual=finite, expected=True, why=case.source)
        moved = leaf.item() < 0.65
        yield exact("all four steps were made", actual=moved, expected=True, why=case.source)
