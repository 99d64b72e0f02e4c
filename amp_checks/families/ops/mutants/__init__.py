"""Planted faults of the family `ops`."""
