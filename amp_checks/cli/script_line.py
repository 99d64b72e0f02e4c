"""A command line with another in it: ``audit [our options] train.py [its arguments]``, or ``-m module [...]``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def split(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Ours, up to the script or the module, and the script's own.

    The first word that is neither the command, an option, nor an option's value is what is run; where that is a case,
    ``file.py:function``, all arguments are ours.
    """
    left = list(arguments)
    place = left.index(next(word for word in left if not word.startswith("-"))) + 1
    while place < len(left):
        word = left[place]
        if word == "-m":
            return left[: place + 2], left[place + 2 :]
        if word == "--":
            return [*left[:place], *left[place + 1 : place + 2]], left[place + 2 :]
        if not word.startswith("-"):
            return (left[: place + 1], left[place + 1 :]) if is_script(word) else (left, [])
        place += 1 if "=" in word else 1 + _values(parser, word)
    return left, []


def is_script(word: str) -> bool:
    """Whether that is a script, and no case."""
    return Path(word).is_file() or ":" not in word


def _values(parser: argparse.ArgumentParser, option: str) -> int:
    """How many words follow an option of ours; it may be shortened."""
    actions = parser._option_string_actions  # noqa: SLF001 - argparse has no other way to ask
    found = {id(action): action for name, action in actions.items() if name == option or name.startswith(option)}
    action = actions.get(option) or (next(iter(found.values())) if len(found) == 1 else None)
    return 0 if action is None or action.nargs == 0 else 1
