"""Tables of cases: what to run, what is expected, and the source of that expectation."""
