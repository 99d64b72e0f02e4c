"""Planted faults of training on several ranks."""
