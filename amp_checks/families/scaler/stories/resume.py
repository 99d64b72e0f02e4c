"""Many steps: training that is interrupted and resumed, here or in another process; growth to the end of float32."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from amp_checks import backends
from amp_checks.core import Finding, attempt, exact
from amp_checks.families.scaler import others
from amp_checks.families.scaler.bits import all_same
from amp_checks.families.scaler.rows import CAP, STATE
from amp_checks.families.scaler.stories.story import StoryCase, leaf_of, story
from amp_checks.torch_api import numerics, state
from amp_checks.torch_api.backend import Backend

STEPS = 9
STOP = 3
"""Steps before the interruption; the scale has fallen by then, and the tracker is not at 0."""
BAD = (0, 6)
"""Steps whose gradients are made inf: one on each side of the interruption."""
SETTINGS = {"init_scale": 1024.0, "growth_interval": 3}


class Run:
    """A small network under autocast with Adam and a scaler; its inputs depend on the number of the step alone."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        with numerics.seeded("resume"):
            self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        for number, parameter in enumerate(self.model.parameters()):
            with torch.no_grad():
                parameter.copy_(numerics.randn(*parameter.shape, seed=f"resume parameter {number}"))
        self.model.to(backend.device_type)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.125)
        self.scaler = backend.scaler(**SETTINGS)

    def train(self, first: int, last: int) -> Run:
        """Steps ``first`` up to, not including, ``last``."""
        for number in range(first, last):
            batch = numerics.randn(3, 4, seed=f"resume batch {number}", device=self.backend.device_type)
            self.optimizer.zero_grad()
            with self.backend.region():
                loss = self.model(batch).float().square().mean()
            if number in BAD:
                loss = loss * float("inf")
            attempt("scaler.scale", self.scaler.scale, loss).backward()
            attempt("scaler.step", self.scaler.step, self.optimizer)
            attempt("scaler.update", self.scaler.update)
        return self

    def checkpoint(self) -> dict[str, Any]:
        """All that a training script saves."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load(self, checkpoint: dict[str, Any]) -> Run:
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        attempt("scaler.load_state_dict", self.scaler.load_state_dict, checkpoint["scaler"])
        return self


def flat(checkpoint: Any, prefix: str = "") -> dict[str, Any]:
    """Nested entries of a checkpoint by path; leaves are tensors and plain values."""
    if not isinstance(checkpoint, dict | list):
        return {prefix: checkpoint}
    entries = checkpoint.items() if isinstance(checkpoint, dict) else enumerate(checkpoint)
    found: dict[str, Any] = {}
    for name, value in entries:
        found |= flat(value, f"{prefix}.{name}" if prefix else str(name))
    return found


def in_new_process(backend: Backend, checkpoint: Path, result: Path) -> None:
    """Load ``checkpoint`` in another Python, train on to the end, and leave the state in ``result``.

    Raises:
        RuntimeError: the other process failed; the message ends with the last line that it wrote.
    """
    root = str(Path(__file__).resolve().parents[4])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    ran = subprocess.run(  # noqa: S603 - our own module, our own interpreter
        [sys.executable, "-c", f"from {__name__} import main; main()", backend.id, str(checkpoint), str(result)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        message = f"the process that resumes the training failed: {ran.stderr.strip().splitlines()[-1:]}"
        raise RuntimeError(message)


def main() -> None:
    """The other process; its arguments are a backend, the path of a checkpoint, and that of the result."""
    backend_id, checkpoint, result = sys.argv[1:]
    backend = backends.backend(backend_id)
    with state.one_thread(), backend.activate():
        run = Run(backend).load(torch.load(checkpoint, weights_only=True))
        torch.save(run.train(STOP, STEPS).checkpoint(), result)


@story("resume-in-new-process", 44, source=STATE, variant="new process", full=True)
@story("resume-in-new-objects", 44, source=STATE, variant="new objects")
def check_resume(case: StoryCase, backend: Backend) -> Iterator[Finding]:
    """Training that is saved and taken up again ends, bit for bit, where training at one go ends."""
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
    expected = flat(whole.train(STOP, STEPS).checkpoint())
    yield from all_same(flat(resumed), expected, "the same", why=case.source)


@story(
    "sharded-growth-stops-below-inf",
    36,
    source=CAP,
    variant="torch.distributed.fsdp.sharded_grad_scaler:ShardedGradScaler",
    real_device="cpu",
    full=True,
)
@story("growth-stops-below-inf", 36, source=CAP)
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
            yield case.exact(f"the scale is finite after step {number}", actual=finite, expected=True)
        moved = leaf.item() < 0.65
        yield case.exact("all four steps were made", actual=moved, expected=True)
