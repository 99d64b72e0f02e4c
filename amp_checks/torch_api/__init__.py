"""What the suite asks of torch and of the machine, torch's private API included. Imports nothing of ours but `core`."""
