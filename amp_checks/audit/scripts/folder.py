"""A scratch copy of the file system that a script may write to: what it writes goes there, and nowhere else.

The folders that the script works in are copied; files too large to copy are links, replaced by copies when they are
opened for writing. Every other folder is copied, as links, when something is first written into it. Python's functions
on paths are replaced, so that a path means the copy where there is one; a subprocess or a library that writes without
Python is led by the working folder alone, which is a copy.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MOST_ENTRIES = 4000
"""Files and folders that are copied at the start; the rest are links."""
LARGEST_FILE = 16 * 2**20
"""Bytes of the largest file that is copied at the start."""
MOST_BYTES = 256 * 2**20
"""Bytes that are copied at the start."""
_LONGEST_LISTING = 20_000
"""Entries of the largest folder that is copied for being listed."""
_NOT_FILES = ("/dev", "/proc", "/sys")
_SKIPPED = (".git", "__pycache__", "node_modules")
_scandir, _mkdir, _symlink, _readlink, _unlink = os.scandir, os.mkdir, os.symlink, os.readlink, os.unlink
_open, _stat, _lstat, _chmod, _rmdir = io.open, os.stat, os.lstat, os.chmod, os.rmdir


class Folder:
    """The copy.

    Args:
        root: an empty folder, for the copy and for temporary files.
        working: the folders that are copied at the start: the current one, and the script's.
    """

    def __init__(self, root: Path, working: tuple[Path, ...]) -> None:
        self.root = str(root.resolve())
        self.tree = f"{self.root}/tree"
        self._links_to = f"{self.root}/real"
        """Links of ours go through here, so that they can be distinguished from other links."""
        self._working = tuple(str(folder.resolve()) for folder in working)
        self._copied: dict[str, tuple[int, int]] = {}
        self._entries = self._bytes = 0
        self._real = {"/"}
        """Folders that are folders in the copy, as far as that was asked, by their original paths."""
        self._temporary = f"{self.root}/temporary"
        for made in (self.tree, self._temporary):
            _mkdir(made)
        _symlink("/", self._links_to)
        self._populate("/")
        for folder in self._working:
            self._copy(folder)

    def path(self, original: str | Path) -> str:
        """Where the copy of a path is, or of what a path of the copy is a copy of."""
        return f"{self.tree}{self.original(str(original))}"

    def original(self, path: str) -> str:
        """What a path of the copy is a copy of; any other path as it is."""
        return path[len(self.tree) :] or "/" if path == self.tree or path.startswith(f"{self.tree}/") else path

    def written(self) -> dict[str, str]:
        """What was ``"written"`` and ``"removed"`` since, by original path; new folders where they are empty."""
        found: dict[str, str] = {}
        waiting = ["/"]
        while waiting:
            folder = waiting.pop()
            with _scandir(self.path(folder)) as entries:
                here = {entry.name: entry for entry in entries}
            try:
                with _scandir(folder) as entries:
                    there = {entry.name for entry in entries}
            except OSError:
                there = set()
                if not here:
                    found[folder] = "written"
            names = {name: f"{folder.rstrip('/')}/{name}" for name in here.keys() | there}
            found |= {names[name]: "removed" for name in there - here.keys() if names[name] != self.root}
            for name, entry in here.items():
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(names[name])
                elif self._link(entry.path) is None and self._copied.get(entry.path) != _stamp(entry.path):
                    found[names[name]] = "written"
        return dict(sorted(found.items()))

    def use(self) -> None:
        """From here on, to the end of this process, paths mean the copy."""
        for owner, name, writes in _ONE_PATH:
            _replace(owner, name, functools.partial(self._on_one, writes))
        for owner, name in _TWO_PATHS:
            _replace(owner, name, self._on_two)
        for owner, name in _LISTINGS:
            _replace(owner, name, self._on_listing)
        for owner, name in _OPENS:
            _replace(owner, name, self._on_open)
        _replace(os, "open", self._on_os_open)
        _replace(os, "chdir", self._on_chdir)
        _replace(os, "symlink", self._on_symlink)
        _replace(torch, "save", self._on_save)
        os.environ["TMPDIR"] = tempfile.tempdir = self._temporary

    def _virtual(self, path: Any) -> str | None:
        """The original path that is meant, absolute; None where it is not ours to lead."""
        if path is None or isinstance(path, int):
            return None
        try:
            text = os.fsdecode(path)
        except TypeError:
            return None
        absolute = self.original(os.path.normpath(os.path.join(os.getcwd(), text)))
        ours = absolute == self.root or absolute.startswith(f"{self.root}/")
        return None if ours or f"/{absolute.split('/')[1]}" in _NOT_FILES else absolute

    def _link(self, here: str) -> str | None:
        """Where a path of the copy leads, if it is a link of ours."""
        try:
            target = _readlink(here)
        except OSError:
            return None
        return target[len(self._links_to) :] if target.startswith(f"{self._links_to}/") else None

    def _is_real(self, virtual: str) -> bool:
        """Whether it is a folder of the copy, and all that it lies in."""
        if virtual in self._real:
            return True
        if not self._is_real(os.path.dirname(virtual)):
            return False
        try:
            found = stat.S_ISDIR(_lstat(self.path(virtual)).st_mode)
        except OSError:
            return False
        if found:
            self._real.add(virtual)
        return found

    def read(self, path: Any) -> Any:
        """Where to read what that path means."""
        virtual = self._virtual(path)
        return path if virtual is None else _like(path, self._found(virtual))

    def _found(self, virtual: str) -> str:
        """In the copy, or where a link of the copy leads; that may be another name than its own, where it was moved."""
        folder, name = os.path.split(virtual)
        if virtual == "/" or self._is_real(folder):
            here = self.path(virtual)
            return self._link(here) or here
        return f"{self._found(folder)}/{name}"

    def write(self, path: Any, *, truncates: bool = False) -> Any:
        """Where to write what that path means: a copy of what is there, or nothing where it is written anew."""
        virtual = self._virtual(path)
        if virtual is None:
            return path
        here = self.path(virtual)
        if self._own_folder(os.path.dirname(virtual)) and (source := self._link(here)) is not None:
            if _is_folder(source):
                self._own_folder(virtual)
            else:
                _unlink(here)
                if not truncates:
                    _copied(source, here)
        return _like(path, here)

    def _own_folder(self, virtual: str) -> bool:
        """Have that folder, and all that it lies in, be folders of the copy; whether there is such a folder."""
        if self._is_real(virtual):
            return True
        if not self._own_folder(os.path.dirname(virtual)):
            return False
        source = self._link(self.path(virtual))
        if source is None or not _is_folder(source):
            return False
        _unlink(self.path(virtual))
        self._populate(virtual, source)
        return True

    def _populate(self, virtual: str, source: str | None = None) -> None:
        """A folder of links to all that is in the source."""
        here = self.path(virtual).rstrip("/")
        with contextlib.suppress(FileExistsError):
            _mkdir(here)
        self._real.add(virtual)
        with contextlib.suppress(OSError), _scandir(source or virtual) as entries:
            for entry in entries:
                if entry.path != self.root:
                    _symlink(f"{self._links_to}{entry.path}", f"{here}/{entry.name}")

    def _copy(self, virtual: str) -> None:
        """Copies in place of links, the nearest first, as far as the limits go."""
        waiting = [virtual]
        while waiting:
            folder = waiting.pop(0)
            if not self._own_folder(folder):
                continue
            with _scandir(self.path(folder)) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            for entry in entries:
                self._entries += 1
                if self._entries > MOST_ENTRIES:
                    return
                name = f"{folder.rstrip('/')}/{entry.name}"
                if entry.is_dir() and entry.name not in _SKIPPED and not os.path.exists(f"{name}/pyvenv.cfg"):
                    waiting.append(name)
                elif entry.is_file() and (source := self._link(entry.path)) is not None:
                    self._copy_file(source, entry.path)

    def _copy_file(self, source: str, here: str) -> None:
        size = os.stat(source).st_size
        if size > LARGEST_FILE or self._bytes + size > MOST_BYTES:
            return
        with contextlib.suppress(OSError):  # not readable: left a link
            _copied(source, f"{here}.amp-checks")
            os.replace(f"{here}.amp-checks", here)
            self._bytes += size
            self._copied[here] = _stamp(here)

    def _on_one(self, writes: bool, original: Callable[..., Any], path: Any = None, *args: Any, **kwargs: Any) -> Any:
        if path is None or kwargs.get("dir_fd") is not None:
            return original(*(() if path is None else (path,)), *args, **kwargs)
        if original is _lstat and (virtual := self._virtual(path)) is not None and virtual.startswith(self._working):
            self._own_folder(virtual)  # who looks this close may compare it with what it opens, as shutil.rmtree does
        found = original(self.write(path) if writes else self.read(path), *args, **kwargs)
        if original is _rmdir and (virtual := self._virtual(path)) is not None:
            self._real.discard(virtual)
        return found

    def _on_two(self, original: Callable[..., Any], source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("src_dir_fd") is None and kwargs.get("dst_dir_fd") is None:
            was = self._virtual(source)
            source, target = self.write(source), self.write(target, truncates=True)
            self._real = {one for one in self._real if was is None or not (one == was or one.startswith(f"{was}/"))}
        return original(source, target, *args, **kwargs)

    def _on_symlink(self, original: Callable[..., Any], source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is None:
            target = self.write(target, truncates=True)
        return original(source, target, *args, **kwargs)

    def _on_chdir(self, original: Callable[..., Any], path: Any) -> None:
        """The working folder leads those who write without Python."""
        virtual = self._virtual(path)
        owned = virtual is not None and self._own_folder(virtual)
        original(_like(path, self.path(virtual)) if owned and virtual is not None else path)

    def _on_listing(self, original: Callable[..., Any], path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        virtual = self._virtual(path)
        if virtual is not None and self._is_real(virtual):
            self._open_listing(virtual)
            path = _like(path, self.path(virtual))
        return original(path, *args, **kwargs)

    def _open_listing(self, virtual: str) -> None:
        """Folders in a listing are folders, no links: who walks a tree does not follow links."""
        with _scandir(self.path(virtual)) as found:
            links = [entry.name for entry in found if entry.is_symlink() and entry.is_dir()]
        if virtual != "/" and len(links) <= _LONGEST_LISTING:
            for name in links:
                self._own_folder(f"{virtual}/{name}")

    def _on_open(self, original: Callable[..., Any], file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        writes = isinstance(mode, str) and bool(set(mode) & set("wax+"))
        file = self.write(file, truncates="w" in mode) if writes else self.read(file)
        return original(file, mode, *args, **kwargs)

    def _on_os_open(self, original: Callable[..., Any], path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is None:
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            # What is removed by way of an open folder (shutil.rmtree does) is not named: the folder must be the copy's.
            virtual = self._virtual(path)
            if not writes and virtual is not None and os.path.isdir(path) and self._own_folder(virtual):
                path = _like(path, self.path(virtual))
            else:
                path = self.write(path, truncates=bool(flags & os.O_TRUNC)) if writes else self.read(path)
        return original(path, flags, *args, **kwargs)

    def _on_save(self, original: Callable[..., Any], value: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        """It writes without Python."""
        if isinstance(f, str | os.PathLike):
            f = self.write(f, truncates=True)
        return original(value, f, *args, **kwargs)


_ONE_PATH = (
    *((os, name, True) for name in "mkdir rmdir remove unlink truncate chmod utime chown mkfifo".split()),
    *((os, name, False) for name in "stat lstat access readlink statvfs getxattr listxattr".split()),
    (torch, "load", False),
)
"""Functions whose first argument is a path, and whether they change what is there."""
_TWO_PATHS = tuple((os, name) for name in ("rename", "replace", "link"))
_LISTINGS = tuple((os, name) for name in ("listdir", "scandir"))
_OPENS = ((builtins, "open"), (io, "open"))


def _replace(owner: Any, name: str, handler: Callable[..., Any]) -> None:
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return handler(original, *args, **kwargs)

    setattr(owner, name, replacement)


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(_stat(path).st_mode)
    except OSError:
        return False


def _copied(source: str, target: str) -> None:
    with _open(source, "rb") as there, _open(target, "wb") as here:
        shutil.copyfileobj(there, here)
    _chmod(target, _stat(source).st_mode)


def _stamp(path: str) -> tuple[int, int]:
    found = _lstat(path)
    return found.st_size, found.st_mtime_ns


def _like(path: Any, found: str) -> Any:
    return os.fsencode(found) if isinstance(path, bytes) else found
