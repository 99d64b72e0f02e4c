"""Planted faults of the family `scaler`."""
