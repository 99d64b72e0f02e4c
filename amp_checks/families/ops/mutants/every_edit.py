"""Every edit of torch's own code for autocast, tried on the rows of regions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from amp_checks import backends
from amp_checks.families.ops.regions.program import RegionCase, Topic
from amp_checks.suite import collect, edits, every_edit
from amp_checks.suite.edits import Edit
from amp_checks.suite.every_edit import Change, Source
from amp_checks.suite.family import Progress
from amp_checks.suite.item import Item
from amp_checks.suite.planting import Tally

BACKENDS = ("cpu-float16", "emulated-cuda-bfloat16")
"""A device as it is and the rules of another, each in the dtype that is not its default: there an edit shows more."""

FOR_SOME = {"emulated-xpu-bfloat16": Topic.GRADIENTS}
"""For gradients also a device that is neither CUDA, which torch takes where none is named, nor the CPU."""


def _items() -> list[Item]:
    found = collect.collect(backends=[backends.backend(name) for name in (*BACKENDS, *FOR_SOME)], families=["ops"])
    return [item for item in found if isinstance(item.case, RegionCase) and _runs(item.case, item.backend.id)]


def _runs(case: RegionCase, backend: str) -> bool:
    return backend in BACKENDS or FOR_SOME[backend] is case.topic


def _source(module: str) -> Source:
    @contextmanager
    def plant(edit: Edit) -> Iterator[Change]:
        with edits.in_place(module, edit):
            yield lambda backend: backend

    return Source(
        module=module,
        equivalents="ops/equivalent_edits.json",
        plant=plant,
        items=_items,
        concerns=_concerns_autocast if module.endswith("checkpoint") else _runs_on_every_python,
        note=", where it deals with autocast" if module.endswith("checkpoint") else "",
    )


def _concerns_autocast(edit: Edit) -> bool:
    """Whether an edit lies in a statement that names autocast; of a ``with``, in that of its contexts."""
    if edit.id.startswith("context-removed"):
        return "autocast" in edit.before
    return "autocast" in edit.statement or any("autocast" in name for name in edit.scope)


def _runs_on_every_python(edit: Edit) -> bool:
    """Leaves out what front ends have for the signature of a class under Python before 3.13, and there alone."""
    return not edit.statement.startswith("if sys.version_info") and "__new__" not in edit.scope


SOURCES = {
    module: _source(module)
    for module in (
        "torch.amp.autocast_mode",
        "torch.utils.checkpoint",
        "torch.cpu.amp.autocast_mode",
        "torch.cuda.amp.autocast_mode",
    )
}
"""What is edited: autocast, its part in checkpointing, its deprecated front ends."""


def edit_every_node(progress: Progress) -> Iterator[Tally]:
    """Try every edit of each source."""
    for source in SOURCES.values():
        yield every_edit.try_every_edit(source, progress)
