"""Scores, masks, plans, batches, errors, and the processes that share a run."""
