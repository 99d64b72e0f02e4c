"""What the hooks of `amp_checks.plugin` stand on: the state of a run, its items, devices, time limits."""
