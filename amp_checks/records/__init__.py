"""Recorded evidence, read-only: cast policies, low-precision support and known defects of each torch."""
