"""Input magnitudes at which ops are finite and accurate under AMP."""
