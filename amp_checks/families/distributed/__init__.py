"""Distributed AMP: every rank takes the same step, and it is the step of one process on the joined batch."""
