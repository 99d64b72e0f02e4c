"""Runs torch's own lists of autocast ops, the ones its GPU tests use, through the emulation.

    python tests/emulation/torch_lists.py [--device cuda]

Each row says in what dtype an op must run and what dtype it must give; the bits must be those of the op run on inputs
cast explicitly. In a process of its own: importing the lists freezes the flags of torch. The last line is a summary as
JSON. Pytest does not collect it: `test_gate.py` runs it.
"""

# ruff: noqa: T201 - a script
from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal import autocast_test_lists
from torch.utils._pytree import tree_map

from amp_checks.core import NotEmulated
from amp_checks.emulation import emulate


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One op: the dtype it must run in, the dtype it must give."""

    list_name: str
    op: str
    args: Any
    kwargs: dict[str, Any]
    run: torch.dtype | None
    out: torch.dtype | None

    @property
    def id(self) -> str:
        return f"{self.list_name}/{self.op}"


LISTS: dict[str, tuple[str, torch.dtype | None]] = {
    "torch_fp16": ("torch", torch.float16),
    "torch_fp32": ("torch", torch.float32),
    "torch_need_autocast_promote": ("torch", torch.float32),
    "torch_expect_builtin_promote": ("torch", torch.float32),
    "methods_fp16": ("Tensor", torch.float16),
    "methods_fp32": ("Tensor", torch.float32),
    "methods_expect_builtin_promote": ("Tensor", torch.float32),
    "nn_fp16": ("torch._C._nn", torch.float16),
    "nn_fp32": ("torch._C._nn", torch.float32),
    "linalg_fp16": ("torch._C._linalg", torch.float16),
    "banned": ("torch._C._nn", None),
}


def rows() -> Iterator[Row]:
    """Every row of the device's lists. A tuple's third place holds keywords, an output dtype or a switch of ROCm's."""
    torch.manual_seed(0)
    made = autocast_test_lists.AutocastTestLists("cpu")
    for name, (_, run) in LISTS.items():
        for op, args, *rest in getattr(made, name, ()):
            extra = rest[0] if rest else None
            out = extra if isinstance(extra, torch.dtype) else run
            yield Row(
                list_name=name, op=op, args=args, kwargs=extra if isinstance(extra, dict) else {}, run=run, out=out
            )


def owner(name: str) -> Any:
    """Where the functions of a list are."""
    found: Any = torch
    for part in LISTS[name][0].split(".")[1:] or ([] if LISTS[name][0] == "torch" else [LISTS[name][0]]):
        found = getattr(found, part)
    return found


def check(row: Row, device: str) -> str | None:
    """What is wrong with the row; None where nothing is."""
    place = owner(row.list_name)
    function = getattr(place, row.op, None) or getattr(torch.Tensor, row.op, None)
    if function is None:
        return "no such function in this torch"
    if not isinstance(row.args, tuple):
        return f"the row is malformed: its arguments are {row.args!r}"
    low = torch.float16
    if row.list_name == "banned":
        try:
            with torch.autocast(device, dtype=low):
                function(*row.args, **row.kwargs)
        except RuntimeError as error:
            return None if "unsafe to autocast" in str(error) else f"{error!r:.150}"
        return "did not raise"
    with torch.autocast(device, dtype=low):
        actual = function(*row.args, **row.kwargs)
        with torch.autocast(device, enabled=False):
            cast = tree_map(lambda value: _cast(value, row.run), (row.args, row.kwargs))
            expected = function(*cast[0], **cast[1])
    outs = actual if isinstance(actual, tuple | list) else (actual,)
    wanted = expected if isinstance(expected, tuple | list) else (expected,)
    for one, other in zip(outs, wanted, strict=True):
        if not isinstance(one, torch.Tensor):
            if one != other:
                return f"{one!r} but {other!r}"
            continue
        if row.out is not None and one.dtype is not row.out:
            return f"{one.dtype} but should be {row.out}"
        if one.dtype is not other.dtype or not torch.equal(one.nan_to_num(), other.nan_to_num()):
            return f"differs from the same op on inputs cast to {row.run}"
    return None


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def main() -> int:
    """Run every row; print those that are wrong, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "xpu"), default="cuda")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wrong: dict[str, str] = {}
    count = 0
    with emulate(options.device):
        for row in rows():
            count += 1
            try:
                why = check(row, options.device)
            except NotEmulated as error:
                why = f"not emulated: {error}"
            except Exception as error:  # noqa: BLE001 - reported by name
                why = f"{error!r:.200}"
            if why is not None:
                wrong[row.id] = why
                print(f"{row.id}: {why}")
    print(json.dumps({"torch": torch.__version__, "device": options.device, "rows": count, "wrong": wrong}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
