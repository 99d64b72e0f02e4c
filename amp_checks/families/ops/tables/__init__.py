"""Rows: the ops of each topic."""
