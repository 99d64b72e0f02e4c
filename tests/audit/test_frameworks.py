"""Cases of frameworks, where these are not installed: ``tox -e scripts`` runs them where they are."""

from __future__ import annotations

import sys

import pytest

import amp_checks.audit
from amp_checks import backends
from amp_checks.core import UsageError

NAMES = {"lightning": "pip install lightning", "transformers": "pip install transformers accelerate"}


@pytest.mark.parametrize("name", NAMES)
def test_a_framework_that_is_not_there_is_one_message(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    case = amp_checks.audit.lightning(object()) if name == "lightning" else amp_checks.audit.trainer(object)
    with pytest.raises(UsageError, match=NAMES[name]):
        amp_checks.audit.audit(case, backends.backend("emulated-cuda-float16"))
