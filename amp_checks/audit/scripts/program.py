"""A training script as a program that the audit runs: found by its name, and started afresh for each run."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from amp_checks.audit import places
from amp_checks.audit.case import AuditCase, Ended, Perform, Training, describe
from amp_checks.audit.runs.session import Session
from amp_checks.audit.scripts.folder import Folder
from amp_checks.audit.scripts.imports import import_all, imported
from amp_checks.audit.scripts.process import Child
from amp_checks.audit.scripts.progress import Progress
from amp_checks.audit.scripts.start import Course
from amp_checks.core import NotEmulated, UsageError
from amp_checks.torch_api.backend import Backend

STEPS = 6
"""Iterations after the first step that was taken."""
TIME_LIMIT = 600.0
"""Seconds of one run."""
_PATIENCE = 1.5
"""A run that cannot be stopped in its own code is ended after this many times its limit."""


def _no_training() -> Training:
    raise UsageError("a script builds no training")


@dataclasses.dataclass(slots=True)
class _Made:
    """What was made of it in this process."""

    runs: int = 0
    imported: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Script(AuditCase):
    """A script or module with its arguments, as a user calls it.

    Attributes:
        target: the path of a script, or the name of a module where ``is_module``.
        arguments: what follows it on its command line.
        steps: iterations that are run after the first step that was taken.
        time_limit: seconds of one run.
        keep: a folder for what the first run wrote and printed; None: it is not kept.
        scratch: where each run has a folder.
        progress: where it is said how far the audit is.
    """

    build: Any = _no_training
    isolated: ClassVar[bool] = True
    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    steps: int = STEPS
    time_limit: float = TIME_LIMIT
    keep: Path | None = None
    scratch: Path
    progress: Progress = dataclasses.field(default_factory=lambda: Progress(silent=True))
    _made: _Made = dataclasses.field(default_factory=_Made)

    def runs_on(self, backend: Backend) -> bool:
        del backend
        return True

    def apart(self, audit: Callable[[], Any]) -> Any:
        """In a process of its own, in which what the script imports is imported once."""
        return Child(what=self.id, folder=self._folder(), talks=True).run(lambda _: audit())

    def _folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.scratch))

    def start(self, backend: Backend, words: str, perform: Perform) -> Callable[[], Any]:
        folder = self._folder()
        child = Child(what=self.id, folder=folder, limit=self.time_limit * _PATIENCE)
        known, environment = list(sys.modules), dict(os.environ)

        def inside(ended: Ended) -> Any:
            working = Path.cwd().resolve()
            copied = Folder(folder, (working, *self._own_folder(working)))
            places.shown_from(working, copied.original)
            os.chdir(copied.path(working))
            copied.use()
            sys.dont_write_bytecode = True

            def noted(ran: Any) -> Any:
                written = copied.written()
                ran.trace.notes |= _written(written, working)
                new = {name: value for name, value in os.environ.items() if environment.get(name) != value}
                new.pop("TMPDIR", None)
                return ran, imported(known), new, written

            with self._as_main(copied):
                return noted(perform(lambda ran: ended(noted(ran))))

        ended = self.progress.start(words)
        result = child.start(inside)

        def finish() -> Any:
            try:
                ran, names, new, written = result()
            finally:
                ended()
            if not self._made.imported:
                self._made.imported = True
                self._keep(folder, written, backend)
                import_all(names, new, backend)
            shutil.rmtree(folder, ignore_errors=True)
            return ran

        return finish

    def _keep(self, folder: Path, written: dict[str, str], backend: Backend) -> None:
        """What the run left is copied from its folder to where the user wants it, below the backend's id."""
        if self.keep is None:
            return
        target = self.keep / backend.id
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        working = Path.cwd().resolve()
        for path in (Path(path) for path, how in written.items() if how == "written"):
            copy = Path(f"{folder}/tree{path}")
            kept = target / path.relative_to(working if path.is_relative_to(working) else "/")
            kept.parent.mkdir(parents=True, exist_ok=True)
            if copy.is_file():
                shutil.copy2(copy, kept)
        shutil.copy2(folder / "output.txt", target / "output.txt")

    def _own_folder(self, working: Path) -> tuple[Path, ...]:
        """That of the script, where it is not in the working folder."""
        if self.is_module:
            return ()
        folder = Path(self.target).resolve().parent
        return () if folder.is_relative_to(working) else (folder,)

    @contextmanager
    def _as_main(self, copied: Folder) -> Iterator[None]:
        """The arguments and the import path that Python gives a script."""
        path = copied.path(Path(self.target).resolve())
        first = Path.cwd() if self.is_module else Path(path).parent
        sys.argv = [self.target if self.is_module else path, *self.arguments]
        sys.path.insert(0, str(first))
        yield

    def play(self, backend: Backend, session: Session, ended: Ended) -> None:
        """Run it, until it ends or ``ended`` is called.

        Raises:
            UsageError: it ended, or raised, before it trained.
        """
        del backend
        course = Course(session, ended, steps=self.steps, seconds=self.time_limit)
        with course.watching():
            try:
                self._run()
                how = "ended"
            except SystemExit as error:
                how = f"called sys.exit({error.code!r})"
            except (NotEmulated, Exception) as error:
                if not course.began:
                    if isinstance(error, NotEmulated):
                        raise
                    text = f"{self.id} raised before it began to train: {describe(error)}; {course.seen()}"
                    raise UsageError(text) from error
                session.watch.fail(error)
                return
        if not course.began:
            raise UsageError(f"{self.id} {how} before it began to train: {course.seen()}")
        session.watch.trace.notes["script"] = f"{how} after {session.watch.trace.steps} iterations"

    def _run(self) -> None:
        if self.is_module:
            runpy.run_module(self.target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")


def _written(found: dict[str, str], working: Path) -> dict[str, str]:
    if not found:
        return {}
    texts = []
    for path, how in found.items():
        shown = os.path.relpath(path, working) if Path(path).is_relative_to(working) else path
        texts.append(shown if how == "written" else f"{shown} (removed)")
    more = f" and {len(texts) - 10} more" if len(texts) > 10 else ""
    return {"written, to a scratch copy": ", ".join(texts[:10]) + more}


@contextmanager
def script(target: str, *arguments: str, is_module: bool = False, **settings: Any) -> Iterator[Script]:
    """A script or module by its name, with its arguments; ``settings`` as of `Script`.

    Raises:
        UsageError: there is no such file or module.
    """
    if not is_module and not Path(target).is_file():
        raise UsageError(f"there is no script {target} (in {Path.cwd()})")
    if is_module and not _is_module(target):
        raise UsageError(f"there is no module {target} here ({Path.cwd()}) or installed")
    with tempfile.TemporaryDirectory(prefix="amp-checks-", ignore_cleanup_errors=True) as scratch:
        yield Script(
            id=target, target=target, arguments=arguments, is_module=is_module, scratch=Path(scratch), **settings
        )


def _is_module(name: str) -> bool:
    place = str(Path.cwd())
    sys.path.insert(0, place)
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path.remove(place)
