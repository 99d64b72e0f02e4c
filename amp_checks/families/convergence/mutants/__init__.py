"""Planted faults of the family `convergence`."""
