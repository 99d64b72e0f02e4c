"""Where in the user's code: the line on the stack, and the module whose forward runs."""

from __future__ import annotations

import contextlib
import functools
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

_PACKAGE = Path(__file__).resolve().parents[1]
_STANDARD_LIBRARY = str(Path(sysconfig.get_paths()["stdlib"]).resolve())
_TORCH = tuple(str(Path(path).resolve()) for path in torch.__path__)
_USER_CODE_OF_OURS = tuple(str(_PACKAGE / name) for name in ("fixtures", "reference"))
_PACKAGES = "-packages"
"""What the path of an installed package holds."""
_LOOP = str(_PACKAGE / "audit" / "case.py")
Place = tuple[CodeType, int, int, tuple[CodeType, int] | None]
"""Code, line and instruction: two calls on one line differ. In a library also the code and line in the user's files."""
_judged: dict[CodeType, bool] = {}
_working: Path | None = None
_original: Callable[[str], str] = str


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
    return _PACKAGES in path or not path.startswith(_STANDARD_LIBRARY)


def user_frame() -> Place | None:
    """The innermost frame of the user's code: cheap to keep, `line` makes text of it."""
    return _user_frame(sys._getframe(1), until="")


def program_frame() -> Place | None:
    """The same, where it is within the program: what calls the loop that runs a case is no part of it."""
    return _user_frame(sys._getframe(1), until=_LOOP)


def _user_frame(frame: FrameType | None, *, until: str) -> Place | None:
    while frame is not None:
        code = frame.f_code
        if code.co_filename == until:
            return None
        if _is_user_code(code):
            caller = _caller(frame.f_back) if _PACKAGES in code.co_filename else None
            return code, frame.f_lineno, frame.f_lasti, caller
        frame = frame.f_back
    return None


def _caller(frame: FrameType | None) -> tuple[CodeType, int] | None:
    """The innermost frame of the user's own files, around one of a library; None where the audit called the library."""
    while frame is not None and frame.f_code.co_filename != _LOOP:
        if _PACKAGES not in frame.f_code.co_filename and _is_user_code(frame.f_code):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None


def _is_user_code(code: CodeType) -> bool:
    user = _judged.get(code)
    if user is None:
        user = _judged[code] = is_user_code(code)
    return user


def user_function() -> int:
    """Which function of the user's code runs, by a number: that around a comprehension or a lambda, where one does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name[:1] != "<" and _is_user_code(code):
            return id(code)
        frame = frame.f_back
    return 0


def called_by_torch() -> bool:
    """Whether torch itself has called the function that `around` has replaced by the one that asks."""
    return sys._getframe(3).f_code.co_filename.startswith(tuple(torch.__path__))


def line(place: Place | None) -> str | None:
    """``file:line``, relative to the current folder where the file lies in it; of a library also who called it."""
    if place is None:
        return None
    code, number, _, caller = place
    text = f"{shown(code.co_filename)}:{number}"
    return text if caller is None else f"{text} (called at {shown(caller[0].co_filename)}:{caller[1]})"


def shown(name: str) -> str:
    """A file as messages name it: relative to the current folder, or to that of packages, where it lies in it."""
    return _shown(name, _working or Path.cwd())


def shown_from(working: Path, original: Callable[[str], str]) -> None:
    """From here on, files are named as of that folder; ``original`` says of which file one is a copy."""
    global _working, _original
    _working, _original = working, original


@functools.lru_cache(maxsize=1024)
def _shown(name: str, folder: Path) -> str:
    path = Path(_original(name))
    if _PACKAGES in name:
        return name.rpartition(f"{_PACKAGES}/")[2]
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(folder))
    return str(path)


def raised_at(error: BaseException) -> str | None:
    """The innermost user line of an error's traceback."""
    found, own = None, None
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_code(code):
            is_own = _PACKAGES not in code.co_filename
            own = (code, traceback.tb_lineno) if is_own else own
            found = code, traceback.tb_lineno, traceback.tb_lasti, None if is_own else own
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
