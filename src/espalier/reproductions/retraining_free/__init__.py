"""Pruning to a budget without training, as published: recipes for `espalier prune`."""
