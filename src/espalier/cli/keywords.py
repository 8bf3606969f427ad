"""Keywords of the Python functions, typed as NAME=VALUE."""

from __future__ import annotations

from typing import Any

import typer

POSITIONAL = ("model", "task", "method", "methods", "folder")  # passed to the API by place


def named(text: str, flag: str) -> dict[str, str]:
    """Return {"text": "review"} of `text=review,label=stars`."""
    found = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = piece.partition("=")
        if not equals or not value:
            raise typer.BadParameter(f"{flag} takes NAME=VALUE with commas between; got {piece!r}")
        found[name.strip()] = value.strip()
    return found


def further(columns: str, words: list[str] | None, **given: Any) -> dict[str, Any]:
    """Return all keywords for the API: columns and `--set` beside those typed as options."""
    from ..experiment.method import parse_value

    known = {"text", "pair", "label"}
    chosen = named(columns, "--columns")
    if unknown := set(chosen) - known:
        raise typer.BadParameter(f"--columns names {', '.join(sorted(known))}; got {min(unknown)!r}")
    pairs = [named(word.replace(",", "\0"), "--set") for word in words or ()]
    extra = {
        k.replace("-", "_"): parse_value(v.replace("\0", ",")) for pair in pairs for k, v in pair.items()
    }
    if twice := set(extra) & {*given, *chosen, *POSITIONAL}:
        name = min(twice)
        raise typer.BadParameter(f"--set {name}: this is an option of its own, --{name.replace('_', '-')}")
    return {**given, **chosen, **extra}


def numbers(text: str, flag: str) -> dict[str, float]:
    """Return {"temperature": 2.0} of `temperature=2`."""
    try:
        return {name: float(value) for name, value in named(text, flag).items()}
    except ValueError:
        raise typer.BadParameter(f"{flag} takes NAME=NUMBER with commas between; got {text!r}") from None
