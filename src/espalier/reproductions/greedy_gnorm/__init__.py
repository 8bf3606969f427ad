"""Greedy-Gnorm (arXiv 2602.04491): its file formats and figures."""
