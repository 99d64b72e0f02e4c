"""Watch a training while it runs: `watch` attaches to whatever trains inside it, and changes no number of it."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from amp_checks import __version__
from amp_checks.audit.finding import Diagnostic, Severity
from amp_checks.audit.places import user_frame
from amp_checks.audit.scripts.start import models_of
from amp_checks.core import first_line
from amp_checks.monitor import rules
from amp_checks.monitor.history import History
from amp_checks.monitor.iteration import Iteration
from amp_checks.monitor.journal import SCHEMA, VERSION, Journal, Record
from amp_checks.monitor.sample import Sample, first_float
from amp_checks.torch_api import private, private_scaler
from amp_checks.torch_api.patching import Patches

EVERY = 20
"""Iterations from one sampled to the next: a sampled one takes a quarter longer, where the model is small."""
_ALERT = 3
"""Iterations that are sampled, inputs too, after one whose step was skipped or whose loss is not finite."""


class Stopped(BaseException):
    """Ends a training in which something was found to stop on; no ``except Exception`` catches it."""


def watch(path: str | os.PathLike[str] | None = None, *, every: int = EVERY, stop_on: str | None = None) -> Watch:
    """A context in which every training of this process is watched.

    Args:
        path: the file that is written; None: ``amp-watch.jsonl``. Of several ranks each writes one, ``.rankN`` before
            its suffix.
        every: iterations from one whose values are measured to the next.
        stop_on: ``error`` or ``warning``: raise `Stopped` at the first finding at least as bad.
    """
    return Watch(Path(path or "amp-watch.jsonl"), every=every, stop_on=stop_on)


class Watch:
    """Records and judges; see `watch`.

    Attributes:
        path: the record's file, that of this rank.
        findings: what the rules found so far.
        history: what they judge by.
    """

    def __init__(self, path: Path, *, every: int = EVERY, stop_on: str | None = None) -> None:
        if every < 1:
            raise ValueError(f"every takes a number of iterations, at least 1, not {every}")
        self.path = of_rank(path, rank(), world())
        self.history = History()
        self._every = every
        self._stop_on = Severity(stop_on) if stop_on else None
        self._journal: Journal | None = None
        self._process = os.getpid()
        self._hooks = ExitStack()
        self._patches = Patches()
        self._updates: set[type] = {torch.amp.GradScaler}
        self._updating = False
        self._forward = ExitStack()
        self._names: dict[int, str] = {}
        self._paths: dict[int, str] = {}
        self._stack: list[bool] = []
        self._current = Iteration(0)
        self._last: Iteration | None = None
        self._marker: int | None = None
        self._seen: set[int] = set()
        self._scaler: Any = None
        self._alert = 0
        self._backward_depth = 0
        self._since = 0.0
        self._quiet = False
        self._trouble: str | None = None

    @property
    def findings(self) -> tuple[Diagnostic, ...]:
        return tuple(self.history.findings)

    def __enter__(self) -> Self:
        self._journal = Journal(self.path)
        self._journal.write(
            {
                "kind": "start", "schema": SCHEMA, "version": VERSION, "amp_checks": __version__,
                "torch": torch.__version__, "every": self._every, "rank": rank(), "world": world(),
                "arguments": sys.argv,
            }
        )  # fmt: skip
        patches = self._patches = self._hooks.enter_context(Patches())
        patches.replace(torch.amp.GradScaler, "step", self._around(self._scaler_steps))
        patches.replace(torch.amp.GradScaler, "update", self._around(self._scaler_updates))
        patches.replace(torch.optim.swa_utils.AveragedModel, "update_parameters", self._around(self._averages))
        patches.replace(*private.backward_engine(), self._around(self._differentiates))
        for handle in (
            optimizer_hooks.register_optimizer_step_pre_hook(self._before_step),
            optimizer_hooks.register_optimizer_step_post_hook(self._after_step),
        ):
            self._hooks.callback(handle.remove)
        self._hooks.callback(self._forward.close)
        self._since = time.perf_counter()
        self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del traceback
        self._hooks.close()
        if self._journal is None or os.getpid() != self._process:
            return
        try:
            self._write(self._last)
        finally:
            end = None if kind is None or error is None else f"{kind.__name__}: {first_line(error)}"
            self._journal.write({"kind": "end", "steps": self._current.step, "raised": end, "trouble": self._trouble})
            self._journal.close()

    # --- What the program calls.

    def _around(self, handler: Callable[..., Any]) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def replacement(*args: Any, **kwargs: Any) -> Any:
                if os.getpid() != self._process:  # a fork of the program, such as a worker that loads data
                    return original(*args, **kwargs)
                return handler(original, *args, **kwargs)

            return replacement

        return make

    def _scaler_steps(self, original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not scaler.is_enabled():
            return original(scaler, optimizer, *args, **kwargs)
        now = self._current
        for kind in type(scaler).__mro__:  # one of FSDP updates its scale by itself
            if "update" in vars(kind) and kind not in self._updates:
                self._updates.add(kind)
                self._patches.replace(kind, "update", self._around(self._scaler_updates))
        self._safely(self._before_scaler, scaler, optimizer)
        now.stepping = id(optimizer)
        self._scaler = scaler
        try:
            return original(scaler, optimizer, *args, **kwargs)
        finally:
            self._scaler = None
            now.found += private_scaler.found_inf(scaler, optimizer)
            now.lr = self._rate(optimizer)
            if now.stepping is not None:  # its step was never called
                now.stepping, now.noticed = None, True
                self._alert = _ALERT

    def _before_scaler(self, scaler: Any, optimizer: Any) -> None:
        now = self._current
        now.scale = now.scale or private_scaler.scale_and_tracker(scaler)
        if now.sample is not None:
            unscaled = private_scaler.is_unscaled(scaler, optimizer)
            scale = now.scale[0] if unscaled and now.scale is not None else None
            now.sample.gradients(self._named(optimizer), scale)

    def _scaler_updates(self, original: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if self._updating or not scaler.is_enabled():
            return original(scaler, *args, **kwargs)
        self._updating = True
        try:
            result = original(scaler, *args, **kwargs)
        finally:
            self._updating = False
        self._mark(id(scaler))
        return result

    def _averages(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        # It mostly runs after the update that ended the iteration whose weights it averages.
        now = self._current
        (now if now.steps or now.found or self._last is None else self._last).averaged += 1
        return original(*args, **kwargs)

    def _differentiates(self, original: Any, roots: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("accumulate_grad") and not self._backward_depth and len(roots) and roots[0].numel() == 1:
            self._current.loss = roots[0].detach().reshape(()).clone()
        self._backward_depth += 1
        try:
            return original(roots, *args, **kwargs)
        finally:
            self._backward_depth -= 1

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if os.getpid() == self._process and self._scaler is None and self._current.sample is not None:
            sample = self._current.sample
            self._safely(lambda: sample.gradients(self._named(optimizer), None))

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if os.getpid() != self._process:
            return
        now = self._current
        now.stepping = None
        now.steps += 1
        if now.sample is not None:
            sample = now.sample
            self._safely(lambda: sample.weights(self._named(optimizer)))
        if self._scaler is None:
            now.lr = self._rate(optimizer)
            now.unscaled_steps += 1
            self._mark(id(optimizer))

    # --- Iterations.

    def _mark(self, what: int) -> None:
        """A step without a scaler, or an update of one: the first of them that comes again ends iterations."""
        if self._marker is None or (what in self._seen and what != self._marker):
            self._marker = what
        self._seen.add(what)
        if what == self._marker:
            self._end_iteration()

    def _end_iteration(self) -> None:
        now = time.perf_counter()
        done, self._current.seconds = self._current, now - self._since
        self._forward.pop_all().close()
        before, self._last = self._last, done
        self._current = Iteration(done.step + 1)
        self._seen = {self._marker} if self._marker is not None else set()
        self._stack = []
        self._write(before)
        self._since = time.perf_counter()
        self._listen()

    def _listen(self) -> None:
        """Measure the iteration that begins, or see its batch alone."""
        now = self._current
        deep = self._alert > 0
        self._alert -= deep
        regular = now.step % self._every == 0
        if not deep and not regular:
            handle = module_hooks.register_module_forward_pre_hook(self._keep_batch)
            self._forward.callback(handle.remove)
            return
        now.sample = Sample(now.step, regular=regular, deep=deep)
        for handle in (
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave, always_call=True),
        ):
            self._forward.callback(handle.remove)

    def _keep_batch(self, module: nn.Module, inputs: Any) -> None:
        if module.training and torch.is_grad_enabled():
            self._current.batch = self._current.batch or inputs
            self._forward.pop_all().close()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if self._stack:
            self._stack[-1] = False
        self._stack.append(True)
        if self._current.batch is None and module.training:
            self._current.batch = inputs

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        is_leaf = self._stack.pop() if self._stack else False
        sample = self._current.sample
        if not is_leaf or sample is None or not module.training or not torch.is_grad_enabled() or self._quiet:
            return
        if os.getpid() != self._process:
            return
        self._safely(lambda: sample.ran(module, inputs, output, user_frame()))

    def _write(self, done: Iteration | None) -> None:
        """Read what an iteration before the last kept, write it down, and judge it."""
        if done is None or self._journal is None:
            return
        with torch.no_grad():
            records = self._safely(done.read, self._path) or []
        if any(record["kind"] == "step" and not record["finite"] for record in records):
            self._alert = self._alert if done.noticed else _ALERT
            first = first_float(done.batch)
            for record in records:
                if record["kind"] in ("step", "nonfinite") and first is not None:
                    record["batch"] = digest(first)
        for record in records:
            self._journal.write(record)
            self._judge(record)

    def _judge(self, record: Record) -> None:
        found = rules.feed(self.history, record)
        for one in found:
            if self._journal is not None:
                self._journal.write({"kind": "finding", **rules.as_record(one)})
        if self._stop_on is not None and any(one.severity.rank <= self._stop_on.rank for one in found):
            raise Stopped(f"{found[0].rule} at step {found[0].step}: {found[0].message}")

    def _safely(self, function: Callable[..., Any], *args: Any) -> Any:
        """What the watch itself fails at is written down, and is no error of the program that it watches."""
        self._quiet = True
        try:
            with torch.no_grad():
                return function(*args)
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            self._trouble = self._trouble or f"{type(error).__name__}: {first_line(error)}"
            return None
        finally:
            self._quiet = False

    # --- Names.

    def _named(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        if any(id(one) not in self._names for one in parameters):
            roots = models_of(parameters)
            taken = set(self._names.values())
            for prefix, root in roots.items():
                clash = any(name in taken for name, _ in root.named_parameters())
                start = f"{prefix}." if len(roots) > 1 else f"{prefix}{len(self._paths)}." if clash else ""
                self._names |= {id(one): start + name for name, one in root.named_parameters()}
                self._paths |= {id(one): (start + name).rstrip(".") for name, one in root.named_modules()}
        return [(self._names.get(id(one), f"parameter {number}"), one) for number, one in enumerate(parameters)]

    def _path(self, module: nn.Module) -> str:
        return self._paths.get(id(module)) or type(module).__name__

    @staticmethod
    def _rate(optimizer: torch.optim.Optimizer) -> float | torch.Tensor | None:
        rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
        return rate.detach().clone() if isinstance(rate, torch.Tensor) else rate


def digest(tensor: torch.Tensor) -> str:
    """The first tensor of a batch: its shape, and a hash of its bytes (SHA-256, 16 digits)."""
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{'x'.join(map(str, tensor.shape))} {hashlib.sha256(data).hexdigest()[:16]}"


@functools.cache
def rank() -> int:
    """The rank of this process, as launchers such as torchrun give it."""
    return int(os.environ.get("RANK", "0") or 0)


@functools.cache
def world() -> int:
    """How many ranks there are."""
    return int(os.environ.get("WORLD_SIZE", "1") or 1)


def of_rank(path: Path, number: int, ranks: int) -> Path:
    """The file of a rank: that itself where there is one rank."""
    return path if ranks == 1 else path.with_name(f"{path.stem}.rank{number}{path.suffix}")
