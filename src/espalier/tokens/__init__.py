"""Tokens: which of them a layer still reads. They are removed or merged between layers, in every pass."""
