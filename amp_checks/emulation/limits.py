"""What an emulated result does not tell, as sentences that every report of one prints."""

from __future__ import annotations

LIMITS: tuple[str, ...] = (
    "Emulated: the autocast rules are the device's own, the kernels are the CPU's; nothing was measured on the device.",
    "Ops that backward runs inside a region do not get the device's rules.",
    "Kernel choice (cuDNN, flash attention, fused cells), TF32 and the order of accumulation are not the device's.",
    "Whether an op supports float16 is the CPU's answer, unless a recorded table says otherwise.",
    "A composite op with a rule is run whole: ops inside it are not seen.",
    "Every CPU tensor counts as a tensor of the device: .cpu() does not leave it.",
)
