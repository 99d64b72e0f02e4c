"""What the rows of every family have in common."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from amp_checks.torch_api.backend import Backend


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Base of a row of a table; a family sets ``family`` in one class body, and a subclass brings the ``id``.

    Attributes:
        family: the name of the family.
        full: run only where ``--full`` asks for it.
    """

    family: ClassVar[str]

    full: bool = False

    def runs_on(self, _: Backend) -> bool:
        """Whether the row means anything on the backend."""
        return True
