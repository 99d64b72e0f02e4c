"""Fused SGD with momentum, and a first step that the scaler skips: the next step moves weights by what lay in memory.

A skipped step allocates the momentum buffer and never writes it; the step after it takes the buffer as it is. Whether it
shows depends on what the allocator hands out, so memory is filled with 7 and given back first.
"""

import torch

weights = torch.nn.Parameter(torch.ones(1000))
optimizer = torch.optim.SGD([weights], lr=0.1, momentum=0.9, fused=True)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
for factor in (float("inf"), 1.0):
    optimizer.zero_grad()
    scaler.scale((weights * factor).sum()).backward()
    used = [torch.full((1000,), 7.0) for _ in range(100)]
    del used
    scaler.step(optimizer)
    scaler.update()
wrong = int((weights.detach() != 1.0 - 0.1 * 1.0).sum())
print(f"{wrong} of 1000 weights are wrong after the first step that was taken; should be 0")
