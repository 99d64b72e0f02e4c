"""Training that is interrupted: N steps at once, or k, a saved state, and N - k in other objects or another process.

``python -m amp_checks.families.scaler.stories.resume BACKEND CHECKPOINT RESULT`` is the other process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from amp_checks import backends
from amp_checks.core import Backend, attempt
from amp_checks.torch_api import numerics, state

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
        [sys.executable, "-m", "amp_checks.families.scaler.stories.resume", backend.id, str(checkpoint), str(result)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        message = f"the process that resumes the training failed: {ran.stderr.strip().splitlines()[-1:]}"
        raise RuntimeError(message)


def main(arguments: list[str]) -> None:
    """The other process."""
    backend_id, checkpoint, result = arguments
    backend = backends.backend(backend_id)
    with state.one_thread(), backend.activate():
        run = Run(backend).load(torch.load(checkpoint, weights_only=True))
        torch.save(run.train(STOP, STEPS).checkpoint(), result)


if __name__ == "__main__":
    main(sys.argv[1:])
