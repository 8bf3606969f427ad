"""Skips: what an input lets a model leave out. Later layers, neurons, activations that are nearly zero."""
