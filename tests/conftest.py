"""Fixtures of the package's own tests."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Sequence

import pytest
from stubs import StubCase, check_stub

from amp_checks import core, suite

pytest_plugins = ["pytester"]


@pytest.fixture
def stub_suite(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[StubCase]], None]:
    """Replace the families by one, ``stub``, with the given rows, for runs inside this process."""

    def install(cases: Sequence[StubCase]) -> None:
        def checks_for(_: StubCase) -> Iterator[core.Check]:
            yield check_stub

        modules: dict[str, dict[str, object]] = {"cases": {"CASES": tuple(cases)}, "checks": {"checks_for": checks_for}}
        for package, content in modules.items():
            module = types.ModuleType(f"amp_checks.{package}.stub")
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(suite, "FAMILIES", {"stub": "stub"})
        # The plugin records around the very test that uses this fixture; what stands in must not reach it.
        monkeypatch.setattr(core, "_recorders", [])

    return install
