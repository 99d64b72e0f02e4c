"""Training under AMP reaches what FP32 reaches, within the noise of the task."""
