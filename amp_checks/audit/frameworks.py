"""Cases for programs whose loop is a framework's: Lightning's, or that of transformers' Trainer.

Neither is imported before it is used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from amp_checks.audit.case import AuditCase, Training
from amp_checks.core import UsageError
from amp_checks.torch_api.backend import Backend

STEPS = 6
"""Steps of the optimizer, where a case does not say how many."""
_PRECISIONS = {torch.float16: "16-mixed", torch.bfloat16: "bf16-mixed"}


def lightning(module: Any, data: Any = None, *, steps: int = STEPS, **settings: Any) -> AuditCase:
    """A case that fits a LightningModule, in a file of cases: ``case = amp_checks.audit.lightning(Model(), Data())``.

    Each run of the audit has its own deep copy of both, and a ``lightning.Trainer`` of its own on one device, with the
    precision ``16-mixed`` or ``bf16-mixed`` of the backend; nothing is logged, validated or saved.

    Args:
        module: a LightningModule, or a function without arguments that makes one.
        data: what ``Trainer.fit`` takes besides: a LightningDataModule or a DataLoader, or a function that makes one;
            None where the module has loaders of its own.
        steps: steps of the optimizer.
        **settings: further arguments of ``lightning.Trainer``: ``gradient_clip_val``, ``accumulate_grad_batches``, ...

    Raises:
        UsageError: when it is audited: Lightning is not installed, or has no such precision on the backend's device.
    """

    def build(device: str, dtype: torch.dtype) -> Training:
        pytorch = _imported("lightning.pytorch", "lightning")
        if not _has_precision(device, dtype):
            raise UsageError(
                f"Lightning has no precision {_PRECISIONS[dtype]} on {device}: audit it on another backend"
            )
        model, loaders = _fresh(module), _fresh(data)
        quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        trainer = pytorch.Trainer(
            **{
                "accelerator": "gpu" if device == "cuda" else "cpu",
                "devices": 1,
                "precision": _PRECISIONS[dtype],
                "max_steps": steps,
                "limit_val_batches": 0,
                "num_sanity_val_steps": 0,
                **quiet,
                **settings,
            }
        )
        given = {"datamodule": loaders} if isinstance(loaders, pytorch.LightningDataModule) else {}
        if loaders is not None and not given:
            given = {"train_dataloaders": loaders}
        return Training(model=model, run=lambda: trainer.fit(model, **given))

    return _LightningCase(id=f"lightning:{_named(module)}", build=build)


class _LightningCase(AuditCase):
    def runs_on(self, backend: Backend) -> bool:
        return _has_precision(backend.device_type, backend.low_dtype)


def _has_precision(device: str, dtype: torch.dtype) -> bool:
    return device == "cuda" or (device == "cpu" and dtype is torch.bfloat16)


def trainer(make: Callable[[], Any], *, steps: int = STEPS) -> AuditCase:
    """A case that trains with transformers' Trainer: ``case = amp_checks.audit.trainer(make_trainer)``.

    Args:
        make: makes the Trainer, without arguments; called anew for each run, because a Trainer chooses its device when
            it is made. It is audited in the precision that its arguments name (``fp16=True``), saves nothing and
            reports nowhere.
        steps: steps of the optimizer.

    Raises:
        UsageError: when it is audited: transformers is not installed, or what was made is no Trainer.
    """

    def build() -> Training:
        transformers = _imported("transformers", "transformers accelerate")
        state = _imported("accelerate.state", "accelerate")
        for shared in (state.AcceleratorState, state.GradientState, state.PartialState):
            shared._reset_state()  # noqa: SLF001 - one run's device and precision would be those of the next
        made = make()
        if not isinstance(made, transformers.Trainer):
            raise UsageError(f"{_named(make)} must make a transformers.Trainer; it made {type(made).__name__}")
        made.args.max_steps = steps
        for name in ("save_strategy", "eval_strategy", "logging_strategy"):
            setattr(made.args, name, transformers.trainer_utils.IntervalStrategy.NO)
        for callback in list(made.callback_handler.callbacks):
            if isinstance(callback, transformers.ProgressCallback | transformers.PrinterCallback):
                made.remove_callback(callback)
        return Training(model=made.model, run=made.train)

    return AuditCase(id=f"trainer:{_named(make)}", build=build)


def _fresh(given: Any) -> Any:
    is_function = callable(given) and not isinstance(given, torch.nn.Module)
    return given() if is_function else copy.deepcopy(given)


def _named(given: Any) -> str:
    return getattr(given, "__qualname__", type(given).__name__)


def _imported(name: str, needs: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name} cannot be imported ({error}): pip install {needs}") from error
