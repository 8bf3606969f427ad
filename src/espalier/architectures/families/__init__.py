"""The drawer of architectures: one table per family of architectures; the folder is the registry."""
