"""What ran below autocast: each op with the dtypes it was given and gave back.

Under emulation an op is seen at its own entry, whole, before it is decomposed. On a real backend a dispatch mode sees
leaf ops only: ``linear`` shows as ``addmm``, and a rule whose inner op carries the same rule cannot be distinguished.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from amp_checks.emulation.region import current

if TYPE_CHECKING:
    from amp_checks.torch_api.backend import Backend

_NOT_USER_CODE = tuple(
    str(Path(path).resolve()) for path in (torch.__path__[0], Path(__file__).parents[1] / "emulation", __file__)
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """One op, as it ran.

    Attributes:
        op: the dispatcher's name: ``aten::mm``, ``aten::softmax.int``.
        input_dtypes, output_dtypes: of its tensors, in order; tensors in lists included.
        module: path (``encoder.layers.0``) of the innermost module that ran it, where modules were asked for; ``""`` is
            the root itself, None no module.
        where: ``file:line`` of the user code that called it, where lines were asked for.
    """

    op: str
    input_dtypes: tuple[torch.dtype, ...]
    output_dtypes: tuple[torch.dtype, ...]
    module: str | None = None
    where: str | None = None


def _dtypes(values: Any) -> Iterator[torch.dtype]:
    for value in values:
        if isinstance(value, Tensor):
            yield value.dtype
        elif isinstance(value, list | tuple):
            yield from _dtypes(value)
        elif isinstance(value, dict):
            yield from _dtypes(value.values())


def _user_line() -> str | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_NOT_USER_CODE) and frame.f_code.co_filename[:1] != "<":
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


class _Recorder:
    def __init__(self, *, lines: bool) -> None:
        self.calls: list[OpCall] = []
        self.modules: list[str] = []
        self._lines = lines

    def record(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Note one op; the arguments and the output are those of its own entry, below autocast."""
        self.calls.append(
            OpCall(
                op=op.name(),
                input_dtypes=tuple(_dtypes((*args, *kwargs.values()))),
                output_dtypes=tuple(_dtypes((output,))),
                module=self.modules[-1] if self.modules else None,
                where=_user_line() if self._lines else None,
            )
        )


class _LeafOps(TorchDispatchMode):
    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        output = func(*args, **(kwargs or {}))
        self._recorder.record(func, args, kwargs or {}, output)
        return output


@contextmanager
def _tracking_modules(root: torch.nn.Module, path: list[str]) -> Iterator[None]:
    """Keep in ``path`` the names of the modules whose forward is running."""
    with ExitStack() as hooks:
        for name, module in root.named_modules():

            def enter(*_: object, name: str = name) -> None:
                path.append(name)

            def leave(*_: object) -> None:
                path.pop()

            hooks.callback(module.register_forward_pre_hook(enter, prepend=True).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


@contextmanager
def observe(
    backend: Backend | None = None, *, modules: torch.nn.Module | None = None, lines: bool = False
) -> Iterator[list[OpCall]]:
    """Collect the ops that run inside, in this thread, in the order in which they end.

    Args:
        backend: the backend under test. An emulated one must be active already. None: whatever is active: the
            emulation where this thread is inside one, else the real device.
        modules: name the module of each op, by its path in this root. Costs a hook per module.
        lines: name the user's line of each op. Costs a walk up the stack per op.

    Raises:
        RuntimeError: the backend is emulated and no emulation of its device type is active in this thread.
    """
    region = current()
    if backend is not None and backend.emulated and (region is None or region.device_type != backend.device_type):
        raise RuntimeError(
            f"observe({backend.id}) needs its emulation to be active in this thread: enter backend.activate() first"
        )
    recorder = _Recorder(lines=lines)
    with ExitStack() as stack:
        if modules is not None:
            stack.enter_context(_tracking_modules(modules, recorder.modules))
        if region is not None and (backend is None or backend.emulated):
            stack.enter_context(region.recorded_by(recorder))
        else:
            stack.enter_context(_LeafOps(recorder))
        yield recorder.calls
