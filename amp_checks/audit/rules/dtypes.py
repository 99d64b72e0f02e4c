"""Dtypes: casts for nothing, ops kept from the dtype that autocast would give them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import torch

from amp_checks.audit.evidence import Evidence
from amp_checks.audit.finding import Found, Severity
from amp_checks.audit.rules.registry import rule
from amp_checks.audit.watching.events import RegionEntered
from amp_checks.audit.watching.trace import Op
from amp_checks.core import CastPolicy
from amp_checks.records import cast_policy
from amp_checks.torch_api.dtypes import LOW, dtype_name

WARNING = Severity.WARNING

_LISTED_AS = {
    "_softmax": "softmax.int",
    "_log_softmax": "log_softmax.int",
    "native_layer_norm": "layer_norm",
    "nll_loss_forward": "nll_loss",
    "linalg_vector_norm": "norm.Scalar",
}
"""Leaf ops, and the overload under which their policy is recorded."""

_COPIES = re.compile(r"_?upsample_nearest")
"""Ops with float32 in their policy that only copy values: 16 bits lose nothing."""

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution"}


def _at(op: Op, message: str) -> Found:
    return Found(message=message, where=op.where, module=op.module, op=op.name, step=op.step)


@rule("cast-back-and-forth", WARNING, remedy="leave the explicit casts out: autocast casts what needs it, once")
def cast_back_and_forth(evidence: Evidence) -> Iterator[Found]:
    """float32 to 16 bits and straight back loses precision; 16 bits to float32 and straight back costs two passes."""
    for op in evidence.amp.ops:
        if op.from_cast is None or op.backward or not op.inputs:
            continue
        first, middle, last = op.from_cast, op.inputs[0], op.outputs[0]
        quantised = middle.itemsize < 2  # numbers of 8 bits are never autocast's: their rounding is meant
        if first is last and middle is not first and first.itemsize != middle.itemsize and not quantised:
            names = " to ".join(map(dtype_name, (first, middle, last)))
            yield _at(op, f"{op.elements} elements are cast from {names} with nothing in between")


@rule("op-kept-in-16-bits", WARNING, remedy="run it inside the region, or give it float32")
def kept_in_16_bits(evidence: Evidence) -> Iterator[Found]:
    """Autocast would run the op in float32; outside of a region, or in a disabled one, it takes what it is given."""
    device = evidence.runs.backend.device_type
    if all(facts.dtype in LOW for facts in evidence.amp.parameters.values()):
        return
    regions = any(event.enabled for event in evidence.amp.of(RegionEntered))
    for op in evidence.amp.ops:
        if op.backward or op.region is not None or op.outputs[0] not in LOW or op.function is not None:
            continue
        name = op.name.removeprefix("aten::")
        listed = _LISTED_AS.get(name, name)
        if _COPIES.match(name) is not None:
            continue
        if cast_policy.of(listed, device) in (CastPolicy.FP32, CastPolicy.FP32_SET_OPT_DTYPE):
            message = (
                f"{op.name} runs in {dtype_name(op.outputs[0])} outside of autocast, which would run it in float32"
            )
            yield dataclasses.replace(_at(op, message), remedy=None if regions else "give it float32")


@rule("op-kept-in-float32", WARNING, remedy="use the form that is not in place and has no out=, and give it no float64")
def kept_in_float32(evidence: Evidence) -> Iterator[Found]:
    """Autocast casts neither in-place and out= forms nor float64: such a product keeps its dtype within a region."""
    for op in evidence.amp.ops:
        name = op.name.removeprefix("aten::").partition(".")[0].rstrip("_")
        if op.backward or op.region is None or name not in _PRODUCTS or op.function is not None:
            continue
        if op.outputs[0] in (torch.float32, torch.float64) and op.in_place:
            yield _at(
                op, f"{op.name} runs in {dtype_name(op.outputs[0])} inside a region: autocast leaves this form alone"
            )
        elif op.outputs[0] is torch.float64:
            yield _at(op, f"{op.name} runs in float64 inside a region")
