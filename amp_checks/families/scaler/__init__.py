"""GradScaler skips the step when gradients hold inf or NaN, and does all else it promises."""
