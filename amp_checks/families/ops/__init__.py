"""The autocast dtype applies on each op, in its gradients and at the borders of regions."""
