"""Models in formats that other tools read without espalier."""
