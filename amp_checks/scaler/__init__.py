"""Gradient scaling: programs as data, the oracle that says what must happen, the driver that makes it happen."""
