"""What the emulated device says of itself: names, properties, and the figures of an allocator that holds nothing."""

from __future__ import annotations

import types
from typing import Any

NAME = "Emulated CUDA device"
CAPABILITY = (8, 0)
"""The first with bfloat16 of its own, and with TF32."""
MEMORY = 80 * 2**30
"""Bytes, all of them free."""


class Properties(types.SimpleNamespace):
    """As ``torch.cuda.get_deviceproperties`` gives them."""


def properties() -> Properties:
    """Of an idle device."""
    return Properties(
        name=NAME,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=MEMORY,
        multi_processor_count=108,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 * 2**10,
        shared_memory_per_multiprocessor=164 * 2**10,
        L2_cache_size=40 * 2**20,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        uuid="00000000-0000-0000-0000-000000000000",
    )


def nested_stats() -> dict[str, Any]:
    """Of an allocator that holds nothing, by the names that CUDA's has: torch's own code flattens them."""
    figures = ("current", "peak", "allocated", "freed")
    pools = {
        name: {pool: dict.fromkeys(figures, 0) for pool in ("all", "small_pool", "large_pool")}
        for name in (
            "allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes "
            "inactive_split_bytes requested_bytes"
        ).split()
    }
    plain = {name: dict.fromkeys(figures, 0) for name in ("oversize_allocations", "oversize_segments")}
    single = dict.fromkeys(
        "num_alloc_retries num_ooms num_sync_all_streams num_device_alloc num_device_free".split(), 0
    )
    return {**pools, **plain, **single, "max_split_size": -1}
