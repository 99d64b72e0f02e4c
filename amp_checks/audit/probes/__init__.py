"""Recorders: dispatch modes that look for the source of a value."""
