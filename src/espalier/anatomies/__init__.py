"""The drawer of anatomies: one table per family of architectures; the folder is the registry."""
