"""A recursive function decorated with one autocast object: when the outermost call has returned, autocast is still on."""

import torch


@torch.autocast("cpu", dtype=torch.bfloat16)
def depth(number: int) -> int:
    return 1 + depth(number - 1) if number else 0


depth(1)
product = torch.ones(2, 2) @ torch.ones(2, 2)
print(
    f"autocast is on: {torch.is_autocast_enabled('cpu')}, a product is {product.dtype}; should be off, and torch.float32"
)
