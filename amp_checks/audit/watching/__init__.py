"""What is recorded while a user's program runs."""
