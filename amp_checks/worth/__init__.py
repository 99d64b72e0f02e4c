"""What AMP is worth for a program: counted on any machine, timed where the device is real."""
