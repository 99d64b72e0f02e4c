"""What an audit says: one diagnostic per fault, with its place and its remedy."""

from __future__ import annotations

import dataclasses
import enum


class Severity(enum.StrEnum):
    """How bad. ``error``: wrong results or ruined training; ``warning``: a risk or a waste; ``note``: worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a rule found.

    Attributes:
        message: what is wrong, with figures; one sentence.
        where: ``file:line`` of the user's code, or None.
        module: path of the module, or None.
        op: the op, or None.
        step: the iteration, or None.
        rule, severity, remedy: where they differ from the rule's own.
    """

    message: str
    where: str | None = None
    module: str | None = None
    op: str | None = None
    step: int | None = None
    rule: str | None = None
    severity: Severity | None = None
    remedy: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One fault, as reports show it. Fields as of `Found`, and:

    Attributes:
        ignored: the reason of the ignore list, or None.
        follows_from: rule of the finding above that explains this one, which then has no remedy; or None.
    """

    rule: str
    severity: Severity
    message: str
    remedy: str
    where: str | None = None
    module: str | None = None
    op: str | None = None
    step: int | None = None
    ignored: str | None = None
    follows_from: str | None = None

    @property
    def place(self) -> str:
        """Line, module and op, as far as they are known."""
        parts = [self.where or "", f"in {self.module}" if self.module else "", self.op or ""]
        return ", ".join(part for part in parts if part)
