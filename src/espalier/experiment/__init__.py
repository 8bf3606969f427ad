"""Experiments: a model, a task and methods, measured level by level in a folder that can resume."""
