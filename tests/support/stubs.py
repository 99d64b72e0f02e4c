"""A family made for tests: rows whose check does what the row says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from amp_checks.core import Check, Finding, NotEmulated, attempt, exact
from amp_checks.families import FAMILIES, Family
from amp_checks.torch_api.backend import Backend


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StubCase:
    """A row of a family made for a test; ``does`` is what its check meets."""

    id: str
    does: str = "pass"
    family: str = "stub"
    full: bool = False
    backends: tuple[str, ...] = ()

    def runs_on(self, backend: Backend) -> bool:
        return not self.backends or backend.id in self.backends


def check_stub(case: StubCase, backend: Backend) -> Iterator[Finding]:
    """Do what the case says."""

    def lack() -> None:
        raise NotEmulated("torch.cuda.Stream", "use no stream")

    yield exact("output.dtype", actual=backend.dtype, expected=backend.dtype, why="stub")
    match case.does:
        case "fail":
            yield exact("output.dtype", actual="float32", expected=backend.dtype, why="stub rule")
        case "break":
            raise LookupError("row is missing")
        case "lack":
            attempt("forward", lack)
        case "interrupt":
            raise KeyboardInterrupt


def only_family(cases: Sequence[StubCase], check: Check = check_stub) -> None:
    """Make ``stub``, with the given rows and one check, the only family of this process."""
    for name in list(FAMILIES):
        del FAMILIES[name]
    FAMILIES["stub"] = Family(name="stub", cases=cases, checks_for=lambda _: iter([check]))
