"""Results as documents: one module per format, each a function from results to text."""
