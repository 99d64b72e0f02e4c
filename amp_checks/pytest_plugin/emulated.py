"""The fixture ``emulated_cuda``: a user's test runs under CUDA's autocast rules, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

MARKER = "emulated_cuda"
DESCRIPTION = (
    f"{MARKER}(numerics='float32'): how the fixture `emulated_cuda` computes products: 'float32', rounded once, or "
    "'native', with the CPU's own half kernels"
)


@contextmanager
def device(node: pytest.Item) -> Iterator[torch.device]:
    """Inside, the device is there; the test fails if its marker asks for what there is not."""
    import torch

    from amp_checks.emulation import emulate

    marker = node.get_closest_marker(MARKER)
    asked: dict[str, Any] = {"numerics": "float32", **(marker.kwargs if marker else {})}
    if set(asked) != {"numerics"} or (marker and marker.args) or asked["numerics"] not in ("float32", "native"):
        pytest.fail(f"write the marker {DESCRIPTION.partition(':')[0]}, or 'native'", pytrace=False)
    with emulate("cuda", numerics=asked["numerics"]):
        yield torch.device("cuda")
