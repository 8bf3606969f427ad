"""Saving, loading and resolving models; sparse files."""
