"""Models on disk: save, load, resolve a name, the from_pretrained hook, sparse files and their encodings."""
