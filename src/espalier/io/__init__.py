"""Files: atomic writes, append-only rows, names of files, plugin files, digests."""
