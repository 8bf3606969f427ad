"""The nouns: scores, masks, plans, batches, errors, and the processes that share a run."""
