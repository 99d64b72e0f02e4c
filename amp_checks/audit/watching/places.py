"""Where in the user's code: the line on the stack, and the module whose forward runs."""

from __future__ import annotations

import contextlib
import functools
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

_PACKAGE = Path(__file__).resolve().parents[2]
_STANDARD_LIBRARY = str(Path(sysconfig.get_paths()["stdlib"]).resolve())
_TORCH = tuple(str(Path(path).resolve()) for path in torch.__path__)
_USER_CODE_OF_OURS = tuple(str(_PACKAGE / name) for name in ("fixtures", "reference"))
Place = tuple[CodeType, int, int]
"""Code, line and instruction: two calls on one line differ."""
_judged: dict[CodeType, bool] = {}


def is_user_code(code: CodeType) -> bool:
    """Whether a frame is of the user's program, or of a package other than torch and this one."""
    name = code.co_filename
    if name[:1] == "<":
        return False
    path = str(Path(name).resolve())
    if path.startswith(_TORCH):
        return False
    if path.startswith(str(_PACKAGE)):
        return path.startswith(_USER_CODE_OF_OURS)
    # Installed packages lie below the standard library's folder.
    return "-packages" in path or not path.startswith(_STANDARD_LIBRARY)


def user_frame() -> Place | None:
    """The innermost frame of the user's code: cheap to keep, `line` makes text of it."""
    frame: FrameType | None = sys._getframe(1)
    judged = _judged
    while frame is not None:
        code = frame.f_code
        user = judged.get(code)
        if user is None:
            user = judged[code] = is_user_code(code)
        if user:
            return code, frame.f_lineno, frame.f_lasti
        frame = frame.f_back
    return None


def user_function() -> int:
    """Which function of the user's code runs, by a number: that around a comprehension or a lambda, where one does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name[:1] != "<" and _is_judged_user_code(code):
            return id(code)
        frame = frame.f_back
    return 0


def _is_judged_user_code(code: CodeType) -> bool:
    user = _judged.get(code)
    if user is None:
        user = _judged[code] = is_user_code(code)
    return user


def called_by_torch() -> bool:
    """Whether torch itself has called the function that `around` has replaced by the one that asks."""
    return sys._getframe(3).f_code.co_filename.startswith(tuple(torch.__path__))


def line(place: Place | None) -> str | None:
    """``file:line``, relative to the current folder where the file lies in it."""
    if place is None:
        return None
    return f"{_shown(place[0].co_filename, Path.cwd())}:{place[1]}"


@functools.lru_cache(maxsize=1024)
def _shown(name: str, folder: Path) -> Path:
    with contextlib.suppress(ValueError):
        return Path(name).resolve().relative_to(folder)
    return Path(name)


def raised_at(error: BaseException) -> str | None:
    """The innermost user line of an error's traceback."""
    found = None
    traceback = error.__traceback__
    while traceback is not None:
        if is_user_code(traceback.tb_frame.f_code):
            found = (traceback.tb_frame.f_code, traceback.tb_lineno, traceback.tb_lasti)
        traceback = traceback.tb_next
    return line(found)


@contextmanager
def tracked_modules(named: Mapping[str, nn.Module], path: list[str]) -> Iterator[None]:
    """Keep in ``path`` the names of the modules whose forward runs; one outside ``named`` goes by its class."""
    names = {id(module): name for name, module in named.items()}

    def enter(module: nn.Module, *_: object) -> None:
        path.append(names.get(id(module)) or type(module).__name__)

    def leave(*_: object) -> None:
        if path:
            path.pop()

    hooks = (
        module_hooks.register_module_forward_pre_hook(enter),
        module_hooks.register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
