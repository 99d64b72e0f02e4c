"""Every optimizer that torch.optim ships, in each of its implementations, under a gradient scaler."""

from __future__ import annotations

import dataclasses

from amp_checks.families.scaler.rows import STEP, ScalerRow
from amp_checks.torch_api.backend import Backend

Shape = tuple[int, ...]
DENSE: tuple[Shape, ...] = ((4, 3), (3,), ())
MATRICES: tuple[Shape, ...] = ((4, 3), (3, 5))
"""Muon takes matrices only."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCase(ScalerRow):
    """One implementation of one optimizer.

    Attributes:
        optimizer: its name in torch.optim.
        settings: its arguments; the implementation is chosen among them.
        shapes: of its parameters.
        sparse: gradients are sparse COO, over rows.
        graphed: its steps are captured in a CUDA graph and replayed.
        device_only: the implementation exists on an accelerator only (capturable): real cuda backends.
    """

    optimizer: str
    settings: tuple[tuple[str, float | bool], ...] = ()
    shapes: tuple[Shape, ...] = DENSE
    sparse: bool = False
    graphed: bool = False
    device_only: bool = False
    source: str = f"{STEP}: skipped steps leave the params uncorrupted"
    behaviours: tuple[int, ...] = (23, 24)

    @property
    def differentiable(self) -> bool:
        return ("differentiable", True) in self.settings

    @property
    def fused(self) -> bool:
        return ("fused", True) in self.settings

    def runs_on(self, backend: Backend) -> bool:
        if self.device_only and (backend.device_type != "cuda" or backend.emulated):
            return False
        return not self.fused or has_fused(self.optimizer, backend)


FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
"""Optimizers with a fused implementation on a CPU."""
FUSED_ON_CUDA_SINCE: dict[str, str] = {"Adagrad": "2.12"}
"""In which torch version an optimizer of `FUSED` got its fused implementation on cuda; the others had it before 2.11.

Observed: 2.11.0 refuses fused Adagrad on cuda, 2.13.0 takes it.
"""


def has_fused(optimizer: str, backend: Backend) -> bool:
    """Whether the torch that is running has the fused implementation of an optimizer on the backend's device."""
    if backend.device_type == "cpu" or optimizer not in FUSED_ON_CUDA_SINCE:
        return True
    import torch
    from packaging.version import Version

    return Version(Version(torch.__version__).base_version) >= Version(FUSED_ON_CUDA_SINCE[optimizer])


IMPLEMENTATIONS: dict[str, tuple[tuple[str, bool], ...]] = {
    "for-loop": (("foreach", False),),
    "foreach": (("foreach", True),),
    "fused": (("fused", True),),
    "capturable": (("foreach", False), ("capturable", True)),
    "capturable-foreach": (("foreach", True), ("capturable", True)),
    "fused-capturable": (("fused", True), ("capturable", True)),
    "differentiable": (("differentiable", True),),
}

_LOOPS = ("for-loop", "foreach", "differentiable")
_CAPTURABLE = (*_LOOPS, "capturable", "capturable-foreach")
_ADAM = (*_CAPTURABLE, "fused", "fused-capturable")

_HAS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, float | bool], ...]]] = {
    "ASGD": (_CAPTURABLE, ()),
    "Adadelta": (_CAPTURABLE, ()),
    "Adafactor": (("for-loop", "foreach"), ()),
    "Adagrad": ((*_LOOPS, "fused"), ()),
    "Adam": (_ADAM, ()),
    "AdamW": (_ADAM, (("amsgrad", True),)),
    "Adamax": (_CAPTURABLE, ()),
    "NAdam": (_CAPTURABLE, ()),
    "RAdam": (_CAPTURABLE, ()),
    "RMSprop": (_CAPTURABLE, (("momentum", 0.9), ("centered", True))),
    "Rprop": (_CAPTURABLE, ()),
    "SGD": ((*_LOOPS, "fused"), (("momentum", 0.9), ("nesterov", True))),
}
"""Optimizer -> its implementations, and arguments that give it as much state as it can have."""

_GATE = ("for-loop", "fused")
"""Implementations that the pull-request gate runs for every optimizer; the others run for Adam only."""


def _row(optimizer: str, implementation: str, settings: tuple[tuple[str, float | bool], ...]) -> OptimizerCase:
    return OptimizerCase(
        id=f"optimizer-{optimizer}-{implementation}",
        optimizer=optimizer,
        settings=(("lr", 0.125), *settings, *IMPLEMENTATIONS[implementation]),
        device_only="capturable" in implementation,
        behaviours=(23, 24, 29, 30) if "fused" in implementation else (23, 24),
        full=optimizer != "Adam" and implementation not in _GATE,
    )


ROWS: tuple[OptimizerCase, ...] = (
    *(
        _row(optimizer, implementation, settings)
        for optimizer, (implementations, settings) in _HAS.items()
        for implementation in implementations
    ),
    *(
        dataclasses.replace(
            _row(optimizer, "fused-capturable", ()), id=f"optimizer-{optimizer}-fused-capturable-graph", graphed=True
        )
        for optimizer in ("Adam", "AdamW")
    ),
    OptimizerCase(id="optimizer-Muon", optimizer="Muon", settings=(("lr", 0.125),), shapes=MATRICES),
    *(
        OptimizerCase(
            id=f"optimizer-{name}",
            optimizer=name.removesuffix("-sparse"),
            settings=(("lr", 0.125),),
            shapes=((6, 2),),
            sparse=True,
            behaviours=(19, 23, 24),
        )
        for name in ("SparseAdam", "SGD-sparse")
    ),
)
