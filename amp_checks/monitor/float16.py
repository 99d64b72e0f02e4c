"""The limits of float16 (IEEE 754 binary16) that values are held against."""

LOST = 6e-8
"""The smallest number is 2**-24, 5.96e-8: what is smaller is lost."""
LARGEST = 65504.0
"""The largest number."""
