"""Fixtures of the package's own tests."""

from __future__ import annotations

import contextlib
import importlib
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from stubs import StubCase, only_family

from amp_checks.families import FAMILIES
from amp_checks.torch_api import numerics

pytest_plugins = ["pytester"]

# A run of pytest inside this process forgets what it imported first, and what is then imported again stands beside what
# was kept of it: C extensions may crash, classes are no longer their own. So all that is heavy is loaded here.
for _name in ("torch", "torch._dynamo", "scipy.stats"):
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)
assert all(family.cases for family in FAMILIES.values())  # each is imported when it is first asked for
with contextlib.suppress(ImportError):
    from amp_checks.report import html, plots  # noqa: F401 - loaded, not used

    plots.ratios({"check": {"CPU": [0.5]}}, name="plot")  # matplotlib loads parts of itself when it draws


@pytest.fixture(autouse=True)
def _drawn_from_its_own_seed(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test draws hangs on no test before it: workers share them out otherwise in each run."""
    before = random.getstate()
    with numerics.seeded(request.node.nodeid):
        random.seed(request.node.nodeid)
        yield
    random.setstate(before)


@pytest.fixture
def stub_suite(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[StubCase]], None]:
    """Replace the families by one, ``stub``, with the given rows, for runs inside this process."""

    monkeypatch.setattr(FAMILIES, "_families", {})
    return only_family
