"""Published experiments reproduced: recipes and their data, and one folder per paper with its formats."""
