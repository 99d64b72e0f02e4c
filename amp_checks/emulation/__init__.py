"""Another device's autocast rules on CPU tensors.

Every torch build registers the autocast rules of CUDA, XPU, MPS, MTIA and MAIA. Inside `emulate`, ordinary CPU
tensors go through those real rules, so that ``torch.autocast("cuda")`` and ``torch.amp.GradScaler("cuda")`` work
unmodified on a machine with no GPU. The kernels stay the CPU's: `LIMITS` says what a result from here does not tell.
"""

from amp_checks.core import DEVICE_TYPES, NotEmulated
from amp_checks.core.limits import EMULATION as LIMITS
from amp_checks.emulation.engine import Numerics
from amp_checks.emulation.region import emulate, hearing_of_replaced, replaces_op
from amp_checks.emulation.rules import registered_rules

__all__ = [
    "DEVICE_TYPES",
    "LIMITS",
    "NotEmulated",
    "Numerics",
    "emulate",
    "hearing_of_replaced",
    "registered_rules",
    "replaces_op",
]
