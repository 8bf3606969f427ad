"""The loop, cutting, zeroing and repair."""
