"""Planted faults of the family `fp32-only`."""
