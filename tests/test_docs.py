"""The README and the pages of docs: links lead somewhere, commands are commands, Python blocks are Python."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from amp_checks.cli import parse

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in _BLOCK.findall(page.read_text(encoding="utf-8")) if language in languages]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in _LINK.findall(text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def _commands() -> list[str]:
    found = []
    for page in PAGES:
        for block in _blocks(page, "sh", "console"):
            lines = [line.removeprefix("$ ").partition("  #")[0] for line in block.splitlines()]
            found += [line for line in lines if line.startswith("amp-checks ")]
    return sorted(set(found))


@pytest.mark.parametrize("command", _commands())
def test_commands_are_commands(command: str) -> None:
    parse(shlex.split(command.partition(" | ")[0])[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_are_python(page: Path) -> None:
    for block in _blocks(page, "python"):
        compile(block, str(page), "exec")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 160
