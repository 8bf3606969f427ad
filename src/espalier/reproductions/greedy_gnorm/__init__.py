"""Greedy-Gnorm (arXiv 2602.04491): its recipes, its file formats and its measurement of gradients."""
