"""Planted faults, with the checks that must catch them."""
