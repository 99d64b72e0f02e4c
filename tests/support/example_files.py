"""The examples, for the tests that exercise them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
WORKFLOW = FOLDER / "github" / "amp.yml"
DOCKERFILES = sorted((FOLDER / "docker").glob("*.Dockerfile"))
OWN_MODEL = FOLDER / "own-model"


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments; continued lines joined, comments left out."""
    lines = [line for line in dockerfile.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines()) if name]


def commands(text: str) -> list[list[str]]:
    """The arguments of every ``amp-checks`` command in a shell script, a workflow or a Markdown table."""
    found = re.findall(
        r"(?:^|[\s`&])(?:\S*/)?amp-checks ((?:run|diff|report|audit|env|selftest|policy)\b[^`\n]*)", text
    )
    return [shlex.split(arguments) for arguments in found]


def entry_point(dockerfile: Path) -> list[str]:
    """What ``docker run`` of the image calls."""
    found = dict(instructions(dockerfile))
    return [*json.loads(found["ENTRYPOINT"]), *json.loads(found["CMD"])]
