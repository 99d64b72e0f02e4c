"""How checks are found, run and judged. Knows no family: each registers itself (`amp_checks.families`)."""
