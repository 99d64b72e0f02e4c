"""The audit of the reference training step finds nothing, and finds what is planted."""
