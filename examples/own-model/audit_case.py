"""What one step of the tagger's training does, op by op: `amp-checks audit audit_case.py:case`."""

import torch
from tagger import Tagger, loss_of, sequences


def case(device, dtype):
    """Called anew for each run."""
    model = Tagger().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)
    batches = list(zip(*(part.split(32) for part in sequences(128, seed=0)), strict=True))

    def step(batch):
        tokens, tags = (part.to(device) for part in batch)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype):
            loss = loss_of(model(tokens), tags)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return {"model": model, "batches": batches, "step": step}
