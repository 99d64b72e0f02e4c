"""What AMP saves of a program, counted: bytes kept for backward, products in 16 bits, casts."""
