"""What results do not say: sentences that every report prints where they apply."""

from __future__ import annotations

EMULATION: tuple[str, ...] = (
    (
        "the autocast rules are the device's own, from this torch build; the kernels, and so speed, memory, "
        "accumulation, TF32 and kernel choice (cuDNN, flash attention), are this CPU's"
    ),
    "ops that backward runs inside a region do not get the device's rules",
    "which ops support float16 is the CPU's answer unless a recorded table says otherwise",
    "an op that is a composite of others and has a rule of its own is seen whole",
)
