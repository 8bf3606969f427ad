"""Skips: what an input lets a model leave out: later layers, heads, neurons, activations near zero."""
