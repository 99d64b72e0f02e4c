"""A sample of the planted faults of all families, caught in every run."""
