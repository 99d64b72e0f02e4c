"""Dispatch modes that look for the origin of a value."""
