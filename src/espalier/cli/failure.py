"""How a command ends early: a sentence in the words of the command line, and an exit code."""

from __future__ import annotations

import re
import sys
from typing import Any

import typer

from .app import app
from .show import rank


def in_flags(message: str) -> str:
    """Spell parameters, `max_length`, as flags of the typed command, and espalier.train as a command."""
    verb: Any = typer.main.get_command(app)
    verbs = "|".join(verb.commands)
    message = re.sub(rf"\bespalier\.({verbs})\b(?!\()", r"espalier \1", message)
    for word in sys.argv[1:3]:
        verb = getattr(verb, "commands", {}).get(word, verb)
    flags = {p.name: p.opts[0] for p in getattr(verb, "params", ()) if p.opts[0].startswith("-")}
    return re.sub(r"`([a-z][a-z_0-9]*)`", lambda match: str(flags.get(match[1], match[1])), message)


def stop(error: KeyboardInterrupt) -> None:
    """End after Ctrl-C, with what is kept."""
    fail("; ".join(["stopped", *map(in_flags, getattr(error, "__notes__", []))]), code=130)


def fail(message: str, code: int = 1) -> None:
    """Print a message and end; of several processes only the first prints."""
    if not rank():
        print(f"espalier: {message}", file=sys.stderr)
    raise SystemExit(code)
