"""What results do not say: sentences that every report prints where they apply. Importing this imports no torch."""

from __future__ import annotations

EMULATION: tuple[str, ...] = (
    "Emulated: the autocast rules are the device's own, the kernels are the CPU's; nothing was measured on the device.",
    "Ops that backward runs inside a region do not get the device's rules.",
    "Kernel choice (cuDNN, flash attention, fused cells), TF32 and the order of accumulation are not the device's.",
    "Whether an op has a low-precision kernel is the CPU's answer, unless the recorded table says otherwise.",
    "RNN layers: torch's own ops, as without cuDNN; float32 inside: one op, float16 in any region, as cuDNN's rule.",
    "Backward computes such a layer again: the bytes saved are without cuDNN's workspace.",
    "A composite op with a rule is run whole: ops inside it are not seen.",
    "Ops that a device's own kernel calls are not seen; those of kernels that all devices share are.",
    "Random numbers are the CPU's.",
    "Every CPU tensor counts as a tensor of the device: .cpu() does not leave it.",
    "Compiled functions run uncompiled.",
)
