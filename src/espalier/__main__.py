"""python -m espalier: the command line, for launchers that want a module."""

from .cli import main

if __name__ == "__main__":
    main()
