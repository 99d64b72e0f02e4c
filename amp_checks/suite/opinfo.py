"""Torch's own op database: its ops, their samples, a call with its gradients, and a sweep in a process of its own.

Importing that database freezes torch's global flags, which must not happen where users' code runs: so a sweep is a
module that is run (`run_module`) and prints one JSON document (`answer`). Needs ``expecttest``
(``pip install 'amp-checks[opinfo]'``).
"""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from amp_checks.core import SuiteError
from amp_checks.torch_api.numerics import randn, seed_of

UNINITIALISED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
"""Ops whose values are whatever the memory held."""

Seen = TypeVar("Seen")


@dataclasses.dataclass(frozen=True, slots=True)
class Op:
    """An op of the database; ``name`` is its name there: ``linalg.norm`` or, of a variant, ``norm.nuc``."""

    info: Any

    @property
    def name(self) -> str:
        variant = self.info.variant_test_name
        return f"{self.info.name}.{variant}" if variant else str(self.info.name)

    @property
    def initialised(self) -> bool:
        """Whether its values are defined at all."""
        return self.info.name not in UNINITIALISED

    def samples(self, most: int, *, device: str = "cpu") -> list[Any]:
        """Seeded float32 samples that hold something, evenly spread over the database's own.

        None where the sampler cannot run on this machine.
        """
        seed = seed_of(self.name)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the database's samplers draw from it
        try:
            made = list(self.info.sample_inputs(device, torch.float32, requires_grad=self.info.supports_autograd))
        except Exception:  # noqa: BLE001 - a sampler that this machine cannot run gives no sample
            return []
        made = [sample for sample in made if all(tensor.numel() for tensor in tensors_of(parts_of(sample)))]
        if len(made) <= most:
            return made
        return [made[round(index * (len(made) - 1) / (most - 1))] for index in range(most)]

    def run(self, parts: tuple[Any, ...], around: AbstractContextManager[Any] | None = None) -> Ran:
        """Call it on input, arguments and keywords, with something around it; the backward pass runs outside."""
        given, args, kwargs = parts
        leaves = [leaf for leaf in tensors_of(parts) if leaf.requires_grad]
        torch.manual_seed(0)
        try:
            with around or nullcontext():
                outputs = tuple(tensors_of(self.info(given, *args, **kwargs)))
        except Exception as error:  # noqa: BLE001 - the kind is what is looked at
            return Ran(error=error)
        ran = Ran(outputs=outputs)
        if not leaves or not any(out.requires_grad for out in outputs):
            return ran
        try:
            roots = [out if out.layout is torch.strided else out.to_dense() for out in outputs if out.requires_grad]
            weights = [_weights(root, seed=f"weights {index}") for index, root in enumerate(roots)]
            gradients = torch.autograd.grad(roots, leaves, weights, allow_unused=True)
        except Exception as error:  # noqa: BLE001 - the kind is what is looked at
            return dataclasses.replace(ran, backward_error=error, differentiable=True)
        return dataclasses.replace(ran, gradients=tuple(gradients), differentiable=True)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One call: its tensors and the gradients of their weighted sum, or the exception of each half."""

    outputs: tuple[torch.Tensor, ...] = ()
    gradients: tuple[torch.Tensor | None, ...] = ()
    error: Exception | None = None
    backward_error: Exception | None = None
    differentiable: bool = False


def _weights(root: torch.Tensor, *, seed: str) -> torch.Tensor:
    """Numbers that a low dtype holds exactly; of ones, many a gradient is zero."""
    weights = (randn(*root.shape, seed=seed) * 8).round() / 8
    return weights.to(device=root.device, dtype=root.dtype)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Every tensor in a nest, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def parts_of(sample: Any) -> tuple[Any, ...]:
    """Input, arguments and keywords of a sample."""
    return sample.input, sample.args, sample.kwargs


def copied(sample: Any, convert: Callable[[Any], Any] = lambda leaf: leaf) -> tuple[Any, ...]:
    """The parts of a sample as new leaves; ``convert`` is applied to each, tensor or not, before gradients are."""

    def fresh(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return convert(leaf)
        return convert(leaf.detach().clone()).requires_grad_(leaf.requires_grad)

    parts: tuple[Any, ...] = tree_map(fresh, parts_of(sample))
    return parts


def sweep(look: Callable[[Op], Seen], names: Sequence[str] = (), *, device_type: str = "cpu") -> Iterator[Seen]:
    """Look at every op that takes float32 on the device type, or at those of the given names, in the database's order.

    Raises:
        SuiteError: the database has no op of a given name that takes float32.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    missing = set(names)
    for info in op_db:
        op = Op(info)
        if torch.float32 in info.supported_dtypes(device_type) and (not names or op.name in names):
            missing.discard(op.name)
            yield look(op)
    if missing:
        raise SuiteError(f"the op database of torch {torch.__version__} has no op {min(missing)!r} that takes float32")


def run_module(module: str, *arguments: str) -> Any:
    """Run a sweep's module in a fresh interpreter; gives the document that it prints.

    Raises:
        SuiteError: it could not run; the message holds the end of what it printed.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own module
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise SuiteError(f"the sweep over torch's op database failed: {lines[-1] if lines else done.returncode}")
    return json.loads(done.stdout)


def answer(make: Callable[[], Any]) -> int:
    """In the process of a sweep: print the document, made on one thread and without warnings."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(make()))
    return 0
