"""Promises about several ranks: one module for each kind of wrapper, a check under the row that it makes."""

from amp_checks.families.distributed.promises import (  # noqa: F401 - importing a module adds its rows
    collectives,
    ddp,
    fsdp1,
    meshes,
    sharded,
)
