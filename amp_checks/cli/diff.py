"""``amp-checks diff``: two results, or the autocast rules of two torch versions."""

from __future__ import annotations

import argparse

from amp_checks.cli import policy_diff
from amp_checks.report import diff
from amp_checks.report.diff import add_arguments

__all__ = ["add_arguments", "main"]


def main(args: argparse.Namespace) -> int:
    """Compare cast policies (of two versions, or files that `policy` wrote), or else two results."""
    if not args.results and policy_diff.accepts(args.old) and policy_diff.accepts(args.new):
        return policy_diff.main(args)
    return diff.main(args)
