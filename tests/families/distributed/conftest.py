"""The tests of the family run where the family does."""

from __future__ import annotations

from amp_checks.families.distributed.rows import THREADS_CRASH

collect_ignore_glob = ["test_*.py"] if THREADS_CRASH else []
