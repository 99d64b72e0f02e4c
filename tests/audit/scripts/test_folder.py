"""The scratch copy: nothing but the copy changes, and a script sees what it did."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from amp_checks.audit.scripts import folder as scratch
from amp_checks.audit.scripts.folder import Folder
from amp_checks.audit.scripts.process import Child

PROGRAM = """
import os, pathlib, shutil, subprocess, tempfile, torch
other = pathlib.Path(OTHER)
here = pathlib.Path(HERE)
open("a.txt", "a").write("more")
assert open("a.txt").read() == "amore"
open("big.bin", "ab").write(b"z")
assert (here / "big.bin").read_bytes() == b"x" * 5000 + b"z"
open(here / "big2.bin", "r+b").write(b"Q")
os.makedirs("made/1"); torch.save({"a": 1}, "made/1/m.pt")
assert torch.load(here / "made/1/m.pt") == {"a": 1}
(other / "deep").mkdir(); (other / "deep/f").write_text("1")
assert sorted(os.listdir(other)) == ["big.bin", "deep", "o.txt", "sub"]
assert [entry.name for entry in os.scandir(other) if entry.is_dir(follow_symlinks=False)] != []
os.remove(other / "o.txt"); assert not (other / "o.txt").exists()
os.rename("data", "data2"); assert open(here / "data2/c1/i.txt").read() == "i"
(here / "data2/c1/i.txt").write_text("j")
shutil.rmtree(other / "sub"); assert not (other / "sub").exists()
shutil.rmtree("runs"); assert not os.path.exists("runs")
subprocess.run("echo hi >> a.txt; echo hi > native.txt", shell=True, check=True)
os.chdir(other); open("relative.txt", "w").write("r"); assert (other / "relative.txt").read_text() == "r"
assert os.path.realpath(other / "big.bin") == str(other / "big.bin")
tempfile.NamedTemporaryFile().close()
"""


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    here, other = tmp_path / "here", tmp_path / "other"
    for folder in (here / "data" / "c1", here / "runs", other / "sub"):
        folder.mkdir(parents=True)
    for path, content in {
        here / "a.txt": b"a",
        here / "big.bin": b"x" * 5000,
        here / "big2.bin": b"x" * 5000,
        here / "data" / "c1" / "i.txt": b"i",
        here / "runs" / "old.pt": b"o",
        other / "o.txt": b"o",
        other / "big.bin": b"y" * 5000,
        other / "sub" / "z": b"z",
    }.items():
        path.write_bytes(content)
    return here, other


@pytest.mark.parametrize("limit", ["LARGEST_FILE", "MOST_ENTRIES", "none"])
def test_only_the_copy_changes(
    limit: str, places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = places
    if limit != "none":
        monkeypatch.setattr(scratch, limit, {"LARGEST_FILE": 1000, "MOST_ENTRIES": 0}[limit])
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    root = tmp_path / "scratch"
    root.mkdir()

    def perform(deliver: Callable[[object], None]) -> dict[str, str]:
        del deliver
        copied = Folder(root, (here,))
        os.chdir(copied.path(here))
        copied.use()
        exec(PROGRAM.replace("OTHER", repr(str(other))).replace("HERE", repr(str(here))), {})
        return copied.written()

    written = Child(what="a program", folder=root).run(perform)
    assert {path: path.read_bytes() for path in files} == files
    now = {path for path in tmp_path.rglob("*") if path.is_file() and root not in path.parents}
    assert now == set(files)
    names = {Path(path).relative_to(tmp_path).as_posix(): how for path, how in written.items()}
    assert names["here/made/1/m.pt"] == names["here/native.txt"] == names["other/deep/f"] == "written"
    assert names["here/runs"] == names["other/sub"] == names["other/o.txt"] == "removed"
    assert names["other/relative.txt"] == "written"
    assert "other/big.bin" not in names
