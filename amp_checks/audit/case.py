"""What is audited: a `Training`, as a case's builder makes it, and how a case is found by its name.

A case is a function. It builds everything anew each time it is called and returns a `Training`, or a mapping with the
same keys (a file of cases then needs nothing from this package). Where it has parameters named ``device`` and ``dtype``
it is given the backend's; without them it runs under the one backend it was written for.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import itertools
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from amp_checks.audit.places import is_user_code, shown
from amp_checks.core import NotEmulated, UsageError, first_line
from amp_checks.torch_api.backend import Backend

Builder = Callable[..., Any]
Ended = Callable[[Any], None]
"""Takes what a session gives where a program is to end that does not end by itself; may not return."""
Perform = Callable[[Ended], Any]
"""Makes a run and gives what is known of it."""
MOST_BATCHES = 1000
"""Of an iterator of batches: it may never end."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A model in training, as its user has it. One of ``step``, ``run`` and ``loss`` says how it trains.

    Attributes:
        model: a module, or several, in a sequence or by name.
        batches: what ``step`` and ``loss`` are called with, one after the other; three to ten are enough. Of a case,
            an iterator will do as well: it is made a list.
        step: one iteration: forward, backward, optimizer, scaler, scheduler. It is given the batch, and by their names
            whichever of ``model``, ``optimizer``, ``scaler``, ``scheduler`` its signature has.
        run: the whole loop, called once with no argument, where the loop itself is what may be wrong.
        loss: ``loss(model, batch)`` gives a scalar; the loop around it is ours, and as torch's documentation has it.
        optimizer, scaler, scheduler: optional: what ``step`` takes by these names. ``loss`` trains with ``optimizer``.
        save, load: optional: ``save()`` gives what the user would write to a checkpoint, ``load(state)`` resumes.
    """

    model: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]
    batches: Sequence[Any] = ()
    step: Callable[..., object] | None = None
    run: Callable[[], object] | None = None
    loss: Callable[[nn.Module, Any], torch.Tensor] | None = None
    optimizer: Any = None
    scaler: Any = None
    scheduler: Any = None
    save: Callable[[], object] | None = None
    load: Callable[[Any], object] | None = None

    def modules(self) -> dict[str, nn.Module]:
        """The models by name: ``""`` for a lone one, its place in a sequence for others."""
        if isinstance(self.model, nn.Module):
            return {"": self.model}
        if isinstance(self.model, Mapping):
            return dict(self.model)
        return {str(place): module for place, module in enumerate(self.model)}

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Every parameter of the models by its path, shared ones once."""
        return {
            _join(name, path): parameter
            for name, module in self.modules().items()
            for path, parameter in module.named_parameters()
        }

    def named_buffers(self) -> dict[str, torch.Tensor]:
        """Every buffer of the models by its path."""
        return {
            _join(name, path): buffer
            for name, module in self.modules().items()
            for path, buffer in module.named_buffers()
        }

    def named_modules(self) -> dict[str, nn.Module]:
        """Every module by its path; a lone model is ``""``."""
        return {
            _join(name, path): module for name, root in self.modules().items() for path, module in root.named_modules()
        }


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditCase:
    """A case by its name: the row that ``parametrize_with_checks`` and the command line take.

    Attributes:
        id: what reports call it, ``package.module:case``.
        build: makes a fresh `Training` at each call.
        seeds: over how many seeds FP32 and AMP are compared; 0: not at all (it costs two trainings a seed).
        full: left to ``--full``.
        isolated: whether each run of it is made in a process of its own.
    """

    id: str
    build: Builder
    seeds: int = 0
    full: bool = False
    family: str = "audit"
    isolated: ClassVar[bool] = False

    def runs_on(self, backend: Backend) -> bool:
        """A case that names its own device runs only where that device is, or is emulated."""
        return takes_device(self.build) or backend.device_type == "cuda"

    def training(self, backend: Backend) -> Training:
        """Build it for a backend.

        Raises:
            UsageError: it raised, or what it gave is no `Training`: says what was expected and what came.
        """
        offered = {"device": backend.device_type, "dtype": backend.low_dtype}
        wanted = {name: value for name, value in offered.items() if name in _parameters(self.build)}
        try:
            made = self.build(**wanted)
        except (NotEmulated, UsageError):
            raise
        except SystemExit as error:
            raise UsageError(f"the case {self.id} called sys.exit while it was built ({describe(error)})") from error
        except Exception as error:
            raise UsageError(f"the case {self.id} raised while it was built: {describe(error)}") from error
        return _checked(self.id, made)

    def apart(self, audit: Callable[[], Any]) -> Any:
        """What an audit of it gives: here, in this process."""
        return audit()

    def start(self, backend: Backend, words: str, perform: Perform) -> Callable[[], Any]:
        """Start a run, which is for what the words say; call what comes back for what it gives.

        Here, in this process, that is when it is made; it ends by itself.
        """
        del backend, words
        return lambda: perform(lambda _: None)

    def play(self, backend: Backend, session: Any, ended: Ended) -> None:
        """Build it and train it, in a `Session` whose watch notes what its step raises.

        Raises:
            UsageError: it cannot be built, or exits.
        """
        del ended
        training, watch = session.begin(self.training(backend)), session.watch
        try:
            for _ in stepper(training, backend)():
                if training.run is None or not watch.trace.steps:  # a loop that is the program's own counts
                    watch.end_step()
        except (UsageError, KeyboardInterrupt):
            raise
        except SystemExit as error:
            if not session.may_exit:
                text = f"the case {self.id} called sys.exit in its step ({describe(error)})"
                raise UsageError(text) from error
            watch.fail(error)
        except Exception as error:  # noqa: BLE001 - whatever the user's step raises is what is audited
            watch.fail(error)


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def takes_device(build: Builder) -> bool:
    """Whether the case leaves the device to us."""
    return "device" in _parameters(build)


def describe(error: BaseException) -> str:
    """Its type, first line, and the innermost place in the user's code: ``ValueError: no (train.py:12)``."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if is_user_code(frame.f_code)
    ]
    place = f" ({shown(frames[-1][0])}:{frames[-1][1]})" if frames else ""
    return f"{type(error).__name__}: {first_line(error)}{place}"


def _checked(case: str, made: object) -> Training:
    if isinstance(made, Mapping):
        known = {field.name for field in dataclasses.fields(Training)}
        if unknown := sorted(set(map(str, made)) - known):
            raise UsageError(
                f"the case {case} gave unknown keys {', '.join(unknown)}; there are {', '.join(sorted(known))}"
            )
        if "model" not in made:
            raise UsageError(f"the case {case} gave no model: a mapping needs the keys model and step, run or loss")
        made = Training(**made)
    if not isinstance(made, Training):
        raise UsageError(
            f"the case {case} must return an amp_checks.audit.Training or a mapping with its fields; "
            f"it returned {type(made).__name__}"
        )
    made = dataclasses.replace(made, batches=_counted(case, made.batches))
    _check_fields(case, made)
    return made


def _counted(case: str, batches: Any) -> Any:
    """The batches; as a list where they have no length."""
    try:
        len(batches)
    except TypeError:
        pass
    else:
        return batches
    if not isinstance(batches, Iterable):
        raise UsageError(f"the case {case}: batches must be a list of them; it is a {type(batches).__name__}")
    listed = list(itertools.islice(batches, MOST_BATCHES + 1))
    if len(listed) > MOST_BATCHES:
        raise UsageError(
            f"the case {case}: batches is a {type(batches).__name__} that gives more than {MOST_BATCHES}; "
            "give a list: three to ten are enough"
        )
    return listed


def _check_fields(case: str, made: Training) -> None:
    if not isinstance(made.model, nn.Module | Mapping | Sequence):
        raise UsageError(
            f"the case {case}: model must be a torch module, or a sequence or mapping of them; "
            f"it is a {type(made.model).__name__}"
        )
    if wrong := [found for found in made.modules().values() if not isinstance(found, nn.Module)]:
        raise UsageError(f"the case {case}: model must be torch modules; it holds {type(wrong[0]).__name__}")
    if not any(parameter.requires_grad for parameter in made.named_parameters().values()):
        raise UsageError(f"the case {case}: its model has no parameter that requires a gradient, so nothing trains")
    if lazy := [name for name, held in (made.named_parameters() | made.named_buffers()).items() if is_lazy(held)]:
        raise UsageError(
            f"the case {case}: {lazy[0]} has no shape yet; call its lazy module on an input once, in the case"
        )
    ways = [name for name in ("step", "run", "loss") if getattr(made, name) is not None]
    if len(ways) != 1:
        given = " and ".join(ways) if ways else "none"
        raise UsageError(f"the case {case} must give one of step, run and loss; it gave {given}")
    if not callable(getattr(made, ways[0])):
        raise UsageError(f"the case {case}: {ways[0]} must be a function")
    if made.run is None and len(made.batches) == 0:
        raise UsageError(f"the case {case} gave no batches, so its {ways[0]} would never be called")
    if (made.save is None) != (made.load is None):
        raise UsageError(f"the case {case}: save and load go together; it gave only one of them")


def load(name: str) -> AuditCase:
    """The case of that name: ``package.module:function`` or ``path/to/file.py:function``.

    A module is looked for in the current folder first.

    Raises:
        UsageError: there is no such module, file or function, or importing it raised.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        raise UsageError(f"a case is named package.module:function or file.py:function; got {name!r}")
    module = _module(place)
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        functions = sorted(
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__
        )
        raise UsageError(f"{place} has no {attribute!r}; its functions are {', '.join(functions) or 'none'}")
    if isinstance(found, AuditCase):
        return found
    if not callable(found):
        raise UsageError(f"{name} must be a function that returns a Training; it is a {type(found).__name__}")
    return AuditCase(id=name, build=found)


def _module(place: str) -> Any:
    try:
        if place.endswith(".py"):
            return _module_of_file(Path(place))
        if "" not in sys.path and str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise UsageError(f"there is no module {place!r} here ({Path.cwd()}) or installed") from None
        raise UsageError(f"importing {place} raised {describe(error)}") from error
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"importing {place} raised {describe(error)}") from error


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def stepper(training: Training, backend: Backend) -> Callable[[], Iterable[int]]:
    """Runs the training: each item of the iterable it gives is the number of an iteration that ended."""
    if training.run is not None:
        whole = training.run

        def once() -> Iterable[int]:
            whole()
            yield 0

        return once
    call = _own_step(training, backend) if training.loss is not None else _bound_step(training)

    def each() -> Iterable[int]:
        for number, batch in enumerate(training.batches):
            call(batch)
            yield number

    return each


def _bound_step(training: Training) -> Callable[[Any], object]:
    step = training.step
    assert step is not None
    offered = {
        "model": training.model,
        "optimizer": training.optimizer,
        "scaler": training.scaler,
        "scheduler": training.scheduler,
    }
    by_name = {name: offered[name] for name in _parameters(step) if name in offered}
    if not by_name:
        return step
    rest = [name for name in _parameters(step) if name not in offered]
    if not rest:
        raise UsageError("step takes no batch: give it a parameter for one")
    return lambda batch: step(**{rest[0]: batch}, **by_name)


def _own_step(training: Training, backend: Backend) -> Callable[[Any], object]:
    """The loop of torch's documentation around the user's loss."""
    loss = training.loss
    model = training.model
    if not isinstance(model, nn.Module):
        raise UsageError("loss= trains one model: give a step for several")
    assert loss is not None
    optimizer = training.optimizer or torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(backend.device_type, enabled=backend.dtype == "float16")

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        with torch.autocast(backend.device_type, dtype=backend.low_dtype):
            value = loss(model, batch)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()

    return step
