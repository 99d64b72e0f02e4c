"""A sparse float32 gradient whose duplicate indices add up to infinity: the scaler checks before it adds, and steps."""

import torch

table = torch.nn.Embedding(4, 2, sparse=True)
optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
loss = (table(torch.tensor([1, 1])) * 1.5e38).sum()
scaler.scale(loss).backward()
print(f"largest scaled gradient: {table.weight.grad.coalesce().values().max():g}")
scaler.step(optimizer)
scaler.update()
print(f"weight after the step: {table.weight[1, 0]:.3g}, loss scale {scaler.get_scale()}; should be unchanged, and 1.0")
