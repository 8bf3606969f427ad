"""Files: atomic writes, rows, JSON, safetensors, spreadsheets, plugins, digests and file names."""
