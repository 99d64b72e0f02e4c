"""Every optimizer of `torch.optim` under a gradient scaler."""
