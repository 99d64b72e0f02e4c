"""Cast policies: what was recorded, what this torch registers, and what differs between two tables.

``fixtures/cast_policy/torch-<version>.json`` holds, for one torch and each device type, every overload with
an autocast rule and its policy, and the source each came from. They are data about torch, independent of
the torch that runs: the checks take their expectations from there, so that a rule lost from a build shows.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path

from amp_checks.core import DEVICE_TYPES, CastPolicy, SuiteError
from amp_checks.records import fixtures

_FIELDS = {"torch", "source", "policy", "cuda_build_only"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The recorded rules of one torch version.

    Attributes:
        torch: its version.
        source: device type -> where its rows came from.
        rules: device type -> overload (``softmax.int``, without ``aten::``) -> policy.
        cuda_build_only: the same for rules that only a build with CUDA registers.
    """

    torch: str
    source: Mapping[str, str]
    rules: Mapping[str, Mapping[str, CastPolicy]]
    cuda_build_only: Mapping[str, Mapping[str, CastPolicy]]

    def of(self, device_type: str, *, cuda_build: bool) -> Mapping[str, CastPolicy]:
        """The rules of a device type in a build with or without CUDA; empty for a device type with none
        recorded.
        """
        extra = self.cuda_build_only.get(device_type, {}) if cuda_build else {}
        return {**self.rules.get(device_type, {}), **extra}


def load(path: Path) -> Table:
    """Read a recorded table.

    Raises:
        SuiteError: the file cannot be read, or is malformed: names the file, the device type, the op and
            what is wrong.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SuiteError(f"{path} cannot be read as a table of cast policies: {error}") from error
    if not isinstance(document, dict) or set(document) != _FIELDS:
        found = sorted(document) if isinstance(document, dict) else type(document).__name__
        raise SuiteError(f"{path}: a table of cast policies has exactly {', '.join(sorted(_FIELDS))}; found {found}")
    if not isinstance(document["source"], dict) or set(document["source"]) != set(document["policy"]):
        raise SuiteError(f"{path}: each device type of policy needs its source, and no other has one")
    return Table(
        torch=str(document["torch"]),
        source=document["source"],
        rules=_rules(path, document["policy"]),
        cuda_build_only=_rules(path, document["cuda_build_only"]),
    )


def _rules(path: Path, devices: object) -> dict[str, dict[str, CastPolicy]]:
    if not isinstance(devices, dict):
        raise SuiteError(f"{path}: expected device types, found {type(devices).__name__}")
    return {device: _rules_of(path, device, policies) for device, policies in devices.items()}


def _rules_of(path: Path, device: str, policies: object) -> dict[str, CastPolicy]:
    if device not in DEVICE_TYPES:
        raise SuiteError(f"{path}: unknown device type {device!r}; there are {', '.join(DEVICE_TYPES)}")
    if not isinstance(policies, dict):
        raise SuiteError(f"{path}: {device}: expected policies with lists of ops, found {type(policies).__name__}")
    rules: dict[str, CastPolicy] = {}
    for name, ops in policies.items():
        if name not in set(CastPolicy) - {CastPolicy.UNLISTED}:
            known = ", ".join(sorted(set(CastPolicy) - {CastPolicy.UNLISTED}))
            raise SuiteError(f"{path}: {device}: unknown policy {name!r}; there are {known}")
        if not isinstance(ops, list) or not all(isinstance(op, str) and op for op in ops):
            raise SuiteError(f"{path}: {device}: {name}: expected a list of op names")
        for op in ops:
            if op in rules:
                raise SuiteError(f"{path}: {device}: duplicate op {op!r} (in {rules[op]} and {name})")
            rules[op] = CastPolicy(name)
    return rules


@functools.cache
def recorded() -> dict[str, Table]:
    """Every table that ships, by torch version, oldest first.

    Raises:
        SuiteError: a table is malformed, or its name and its version differ.
    """
    tables = {}
    for version, path in fixtures.of_versions("cast_policy").items():
        tables[version] = load(path)
        if tables[version].torch != version:
            raise SuiteError(f"{path}: its name and its torch version ({tables[version].torch}) differ")
    return tables


def table_for(version: str) -> Table:
    """The table of a torch version: its own, else the newest recorded one before it, else the oldest."""
    return fixtures.nearest(version, recorded())


@functools.cache
def declared(device_type: str) -> Mapping[str, CastPolicy]:
    """The recorded rules that hold for the torch that runs, on a device type. Never read from that torch."""
    import torch

    return table_for(torch.__version__).of(device_type, cuda_build=torch.version.cuda is not None)


def of(op: str, device_type: str) -> CastPolicy:
    """The policy of an overload (``softmax.int``) on a device type; ``unlisted`` where no rule is
    recorded.
    """
    return declared(device_type).get(op, CastPolicy.UNLISTED)


def registered(device_type: str) -> frozenset[str]:
    """The overloads for which the running torch registers an autocast rule now, without ``aten::``."""
    from amp_checks.torch_api import private

    # Other libraries register rules for ops of their own (torchvision does); this table is about torch's.
    rules = private.autocast_rules(device_type)
    return frozenset(name.removeprefix("aten::") for name in rules if name.startswith("aten::"))


@functools.cache
def exists(op: str) -> bool:
    """Whether the running torch has that overload at all."""
    import torch

    name, _, overload = op.partition(".")
    packet = getattr(torch.ops.aten, name, None)
    return packet is not None and (overload or "default") in packet.overloads()
