"""One table per family of architectures; every file here is found by `architectures()`."""
