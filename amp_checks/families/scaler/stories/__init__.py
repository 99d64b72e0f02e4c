"""Promises of GradScaler that need code of their own."""
