"""What a rule is about: why it is a fault, what to change, a faulty program with its correction, public reports."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import json
import sys
import textwrap

from amp_checks.audit.rules import RULES, errors
from amp_checks.core import unknown
from amp_checks.records.fixtures import fixture

_OVER_SEEDS = (
    "Trained over several seeds, the program under AMP ends elsewhere than in FP32 (--seeds): a fault that no single "
    "iteration shows, or 16 bits that are too coarse for this training."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A rule, for a reader.

    Attributes:
        rule: its id.
        severity: of what it finds, where a finding does not say otherwise.
        why: why that is a fault.
        remedy: what to change.
        program: source of a function that builds a program with the fault, on the line ``# fault``, and without; or "".
        reports: public reports of the same fault.
    """

    rule: str
    severity: str
    why: str
    remedy: str
    program: str
    reports: tuple[str, ...]

    def text(self) -> str:
        """For a terminal."""
        parts = [f"{self.rule} ({self.severity})", _wrapped(self.why), f"Remedy: {self.remedy}"]
        if self.program:
            parts.append(f"A program with it (fault=True) and without:\n\n{textwrap.indent(self.program, '    ')}")
        if self.reports:
            parts.append("Public reports:\n" + "\n".join(f"    {one}" for one in self.reports))
        return "\n\n".join(parts) + "\n"

    def markdown(self) -> str:
        """A section of the page of rules."""
        parts = [f"## {self.rule}", f"*{self.severity}* {self.why}", f"**Remedy:** {self.remedy}."]
        if self.program:
            parts.append(f"A program with it (`fault` true) and without:\n\n```python\n{self.program}\n```")
        if self.reports:
            parts.append("Public reports: " + ", ".join(f"<{one}>" if "://" in one else one for one in self.reports))
        return "\n\n".join(parts) + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100)


@functools.cache
def pages() -> dict[str, Page]:
    """A page for each id that a finding may have, in the order of the alphabet."""
    programs, found = _programs(), {}
    for row in errors.KNOWN:
        why = f"Torch raises, because {row.meaning}."
        found[row.rule] = _page(row.rule, "error", why, row.remedy, programs)
    for rule in RULES.values():
        why = " ".join(inspect.cleandoc(rule.function.__doc__ or "").split())
        found[rule.id] = _page(rule.id, str(rule.severity), why, rule.remedy, programs)
    found["training-differs"] = _page(
        "training-differs", "error", _OVER_SEEDS, "see the other findings first", programs
    )
    return dict(sorted(found.items()))


def _page(rule: str, severity: str, why: str, remedy: str, programs: dict[str, list[tuple[str, str]]]) -> Page:
    known = programs.get(rule, [])
    # One that shows its loop, rather than one that fills in a part of another's.
    shortest = min(
        (source for source, _ in known), key=lambda text: ("torch.autocast" not in text, len(text)), default=""
    )
    listed = json.loads(fixture("audit/reports.json").read_text(encoding="utf-8"))["reports"]
    reports = tuple(dict.fromkeys(link for _, number in known for link in listed.get(number, ())))
    return Page(rule=rule, severity=severity, why=why, remedy=remedy, program=shortest, reports=reports)


def _programs() -> dict[str, list[tuple[str, str]]]:
    """Of each rule: the sources of the fixtures that trip it, and the number of the report that each stands for."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(fixture("audit").glob("loops_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "pair":
                    (rule,) = (word.value for word in call.args if isinstance(word, ast.Constant))
                    numbers = [word.value for word in call.keywords if word.arg == "report"]
                    number = next((str(one.value) for one in numbers if isinstance(one, ast.Constant)), "")
                    found.setdefault(str(rule), []).append((ast.get_source_segment(text, node) or "", number))
    return found


def page(rule: str) -> Page:
    """That of one rule.

    Raises:
        UsageError: there is no such rule; names those that there are.
    """
    if rule not in pages():
        raise unknown("rule", rule, pages())
    return pages()[rule]


def markdown() -> str:
    """All rules on one page."""
    head = (
        "# Rules of the audit\n\nWhat `amp-checks audit` can find; `amp-checks audit --explain RULE` prints one of "
        "these. This page is\nmade by `python -m amp_checks.audit.explain > docs/rules.md`.\n"
    )
    return "\n".join([head, *(one.markdown() for one in pages().values())])


if __name__ == "__main__":
    sys.stdout.write(markdown())
