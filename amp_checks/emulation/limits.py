"""What an emulated result does not tell, as sentences that every report of one prints."""

from __future__ import annotations

from amp_checks.core.limits import EMULATION as LIMITS

__all__ = ["LIMITS"]
