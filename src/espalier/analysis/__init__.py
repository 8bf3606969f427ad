"""Results read from files: curves, intervals, summaries."""
