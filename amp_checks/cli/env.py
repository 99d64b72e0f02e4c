"""``amp-checks env``: what a verdict depends on here."""

from __future__ import annotations

import argparse

from amp_checks.backends import environment
from amp_checks.cli import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `main` reads."""
    output.add_json(parser, "it")


def main(args: argparse.Namespace) -> int:
    """Print the environment and which backends can run; always 0."""
    found = environment.describe()
    lines = [*environment.lines(found), "", "backends:", *environment.backend_lines(found)]
    output.emit(args, found, "\n".join(lines))
    return 0
