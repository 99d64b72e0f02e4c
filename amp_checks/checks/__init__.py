"""Checks: generators that measure one property of one case under one backend."""
