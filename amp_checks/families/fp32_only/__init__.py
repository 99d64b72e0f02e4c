"""Ops that do not run in 16 bits are found, and run right when forced to FP32 outside autocast."""
