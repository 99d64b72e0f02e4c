"""GradScaler in plain Python, and the scripts that drive it beside torch's."""
