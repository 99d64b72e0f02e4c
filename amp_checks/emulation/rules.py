"""Which ops a device's autocast has a rule for, read from the dispatcher, and noticed when it changes."""

from __future__ import annotations

from amp_checks import _torch_private as private


def registered_rules(device_type: str) -> frozenset[str]:
    """Names, as the dispatcher's (``aten::mm``), of the ops that autocast on this device type has a rule for.

    Read at each call: a rule that was removed (its kernel replaced by a fallthrough) is not among them.

    Raises:
        ValueError: autocast knows no such device type.
    """
    try:
        return private.autocast_rules(device_type)
    except KeyError:
        raise ValueError(f"no autocast rules for device type {device_type!r}") from None


class Generation:
    """Counts the changes made to the dispatcher through `torch.library` while a region is active."""

    def __init__(self) -> None:
        self.count = 0

    def bump(self) -> None:
        self.count += 1


GENERATION = Generation()
