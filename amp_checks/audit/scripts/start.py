"""Where the training of a script begins and ends, found while it runs."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from amp_checks.audit.case import Ended, Training
from amp_checks.audit.runs.session import Session
from amp_checks.audit.watching import readable
from amp_checks.audit.watching.state import around
from amp_checks.torch_api.patching import Patches

MOST_ITERATIONS = 60
"""Before a step was taken: a loss scale of 2**16 comes down to 2**-24 in forty."""


class Course:
    """Begins the session where the script begins to train, and ends it after so many iterations.

    Training begins at the first autocast region or call of a module in training mode, with gradients, once an optimizer
    was made. It ends ``steps`` iterations after the first in which an optimizer really stepped, or after as many as
    the session is to have.
    """

    def __init__(self, session: Session, ended: Ended, *, steps: int, seconds: float) -> None:
        self._session = session
        self._ended = ended
        self._steps = steps
        self._seconds = seconds
        self._since = time.monotonic()
        self._process = os.getpid()
        self._patches = Patches()
        self._taken_at: int | None = None

    @property
    def began(self) -> bool:
        return self._session.training is not None

    def seen(self) -> str:
        """How far the script came, in words."""
        optimizers = [type(one).__name__ for one in self._session.watch.optimizers.known]
        scalers = len(self._session.watch.state.scalers)
        made = f"it made {', '.join(optimizers) or 'no optimizer'}"
        made += f" and {scalers} gradient scaler{'s' * (scalers > 1)}" if scalers else ""
        return f"{made}, and called no module in training mode with gradients after that" if optimizers else made

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, the script runs."""
        with self._patches:
            self._patches.replace(nn.Module, "__call__", around(self._called))
            self._patches.replace(torch.autocast, "__enter__", around(self._entered))
            yield

    def _called(self, original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if module.training:
            self._begin()
        return original(module, *args, **kwargs)

    def _entered(self, original: Callable[..., Any], region: Any) -> Any:
        self._begin()
        return original(region)

    def _begin(self) -> None:
        session = self._session
        optimizers = session.watch.optimizers.known
        if self.began or not optimizers or not torch.is_grad_enabled() or os.getpid() != self._process:
            return
        models = models_of([parameter for one in optimizers for parameter in readable.parameters_of(one)])
        if not models:
            return
        self._patches.close()
        session.begin(Training(model=models if len(models) > 1 else next(iter(models.values())), run=lambda: None))
        session.watch.state.advance = self._advance

    def _advance(self) -> None:
        if os.getpid() != self._process:
            return
        watch = self._session.watch
        watch.end_step()
        done = watch.trace.steps
        if self._taken_at is None and watch.optimizers.stepped_really:
            self._taken_at = done
        if self._session.iterations is not None:
            enough = done >= self._session.iterations
        else:
            enough = done >= (self._taken_at + self._steps if self._taken_at is not None else MOST_ITERATIONS)
            enough = enough or time.monotonic() - self._since > self._seconds
        if enough:
            watch.trace.notes["script"] = f"stopped after {done} iterations"
            self._ended(self._session.finish(stopped=True))


def models_of(parameters: Sequence[torch.Tensor]) -> dict[str, nn.Module]:
    """The outermost modules that hold these parameters, by class name, in the order of the parameters.

    Parameters that no module holds are those of a module ``parameters``.
    """
    # isinstance asks lazy objects of other libraries for their class, which may import half of them.
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    wanted = {id(parameter) for parameter in parameters}
    owning = [module for module in modules if any(id(one) in wanted for one in _parameters(module))]
    inner = {id(child) for module in owning for child in module.modules() if child is not module}
    roots = [module for module in owning if id(module) not in inner]
    found: dict[str, nn.Module] = {}
    rest: dict[str, torch.Tensor] = {}
    for number, parameter in enumerate(parameters):
        root = next((one for one in roots if any(parameter is held for held in one.parameters())), None)
        if root is None:
            rest[str(number)] = parameter
        elif not any(root is known for known in found.values()):
            found[_free(type(root).__name__, found)] = root
    if rest:
        found[_free("parameters", found)] = module = nn.Module()
        vars(module)["_parameters"].update(rest)  # plain tensors, where they are no nn.Parameter
    return found


def _parameters(module: nn.Module) -> list[torch.Tensor]:
    held = vars(module).get("_parameters")  # a module whose __init__ has not run has none
    return list(module.parameters()) if held is not None else []


def _free(name: str, taken: dict[str, nn.Module]) -> str:
    number, free = 1, name
    while free in taken:
        number, free = number + 1, f"{name}{number + 1}"
    return free
