"""Regions, decorators, caches, threads and custom functions, as small programs."""
