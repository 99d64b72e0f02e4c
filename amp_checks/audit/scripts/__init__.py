"""Training scripts, audited as they are: each run starts one afresh, in a process and a scratch folder of its own."""
