"""Two documents compared: `compare` finds what differs, `formats` shows it."""
