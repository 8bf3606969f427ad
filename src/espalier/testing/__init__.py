"""Checks for tables and criteria, here and in other packages: tiny models, contracts, gradients."""
