"""Devices by their public peak figures, and the time that a roofline gives an op on one."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping

from amp_checks.core import unknown
from amp_checks.records.fixtures import fixture

DEFAULT = "a100"
"""Where the device is none that the table knows."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device.

    Attributes:
        id, name: in the table, and as its driver names it.
        peaks: FLOP/s of dense products by dtype; a dtype that is missing runs at the rate of float32.
        bandwidth: bytes/s of its memory.
        launch: seconds that any kernel takes at least (an assumption).
        misaligned: share of the peak for products of shapes that miss the multiples (an assumption).
        source: of the peak figures.
    """

    id: str
    name: str
    peaks: Mapping[str, float]
    bandwidth: float
    launch: float
    misaligned: float
    source: str

    def peak(self, dtype: str, *, tf32: bool = False) -> float:
        """FLOP/s of products in that dtype."""
        if dtype == "float32" and tf32:
            return self.peaks.get("tf32", self.peaks["float32"])
        return self.peaks.get(dtype, self.peaks["float32"])


@functools.cache
def table() -> dict[str, Device]:
    """Every device by its id."""
    found = json.loads(fixture("worth/devices.json").read_text(encoding="utf-8"))
    return {
        name: Device(
            id=name,
            name=entry["name"],
            peaks={
                key: entry[key] * 1e12 for key in ("float64", "float32", "tf32", "float16", "bfloat16") if key in entry
            },
            bandwidth=entry["bandwidth"] * 1e9,
            launch=found["launch_us"] * 1e-6,
            misaligned=found["misaligned"],
            source=entry["source"],
        )
        for name, entry in found["devices"].items()
    }


def device(name: str) -> Device:
    """The device of that id.

    Raises:
        UsageError: there is none; names the nearest.
    """
    if name not in table():
        raise unknown("device", name, table())
    return table()[name]


def known_as(driver_name: str | None) -> Device:
    """The device that a driver names so, or `DEFAULT`."""
    for one in table().values():
        if driver_name is not None and one.name.lower() in driver_name.lower():
            return one
    return table()[DEFAULT]
