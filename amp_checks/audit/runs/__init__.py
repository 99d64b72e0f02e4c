"""The runs of a user's program that the audit compares."""
