"""The reference implementation: one model, one training loop for FP32 and AMP, and the tasks it runs."""
