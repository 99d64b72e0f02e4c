"""docs/architecture.md names every room and the layers of the import contracts; a family is added in a few lines."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import amp_checks
from amp_checks import backends
from amp_checks.core import Finding, Status, exact
from amp_checks.families import FAMILIES, Family, collect
from amp_checks.suite.measure import recording
from amp_checks.suite.row import Row
from amp_checks.torch_api.backend import Backend

ROOT = Path(__file__).parents[1]
PACKAGE = Path(amp_checks.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def block(heading: str) -> list[str]:
    """The lines of the first fenced block under a heading."""
    found = re.search(rf"^## {heading}$.*?^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, heading
    return found.group(1).splitlines()


def rooms_on_the_page() -> set[str]:
    """Paths of the tree, relative to the package; two spaces of indentation are one level."""
    found: set[str] = set()
    above: list[str] = []
    for line in block("Rooms")[1:]:
        name = line.split()[0].rstrip("/")
        level = (len(line) - len(line.lstrip())) // 2
        above = [*above[: level - 1], name]
        found.add("/".join(above))
    return found


def rooms_there_are() -> set[str]:
    folders = (path for path in PACKAGE.rglob("*") if path.is_dir() and path.name != "__pycache__")
    top = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    return {path.relative_to(PACKAGE).as_posix() for path in folders} | top


def test_the_page_names_every_room_and_no_other() -> None:
    assert rooms_on_the_page() == rooms_there_are()


def test_the_package_has_few_rooms_at_the_top() -> None:
    assert len([path for path in PACKAGE.iterdir() if path.name != "__pycache__"]) <= 17


def test_the_layers_on_the_page_are_those_of_the_contracts() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]
    written = [set(re.split(r"[|,] ?", line.replace(" ", ""))) for line in block("Layers")]
    assert written == [set(re.split("[|:]", layer.replace(" ", ""))) for layer in contract["layers"][1:]]


def test_files_are_short_enough_to_know() -> None:
    long = {path.name: count for path in PACKAGE.rglob("*.py") if (count := len(path.read_text().splitlines())) > 450}
    assert long == {}


def check_id_of_backend(_: Row, backend: Backend) -> Iterator[Finding]:
    yield exact("dtype", actual=backend.dtype, expected="bfloat16", why="the id of the backend")


def test_a_family_is_a_value_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class StubRow(Row):
        family = "stub"
        id = "one"

    stub = Family(name="stub", cases=(StubRow(),), checks_for=lambda _: iter((check_id_of_backend,)))
    monkeypatch.setitem(FAMILIES, "stub", stub)
    (item,) = collect(backends=[backends.backend("cpu-bfloat16")], families=["stub"])
    assert item.id == "check_id_of_backend-one-cpu-bfloat16"
    with recording() as results:
        item()
    assert [result.status for result in results] == [Status.PASSED]
