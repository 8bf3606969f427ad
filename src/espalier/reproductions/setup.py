"""A set-up: a TOML file with a verb and the settings that differ from its defaults, all checked at once."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from ..core.errors import FormatError, suggest
from ..core.progress import OnProgress
from ..experiment.method import parse_value
from ..experiment.session import SessionOptions
from ..experiment.verb import Keywords, find_wrong_keywords
from ..io.files import reading
from .recipe import MODES, names

Verb = Callable[..., Any]
TRUSTING = ("trust", "trust_remote_code")  # keys that let a file of others run code


def run_setup(
    recipe: str | Path, changes: Mapping[str, Any], verbs: Mapping[str, Verb], on_progress: OnProgress
) -> Any:
    """Read a set-up and do what it says."""
    name, settings = read_setup(recipe, changes, verbs)
    return verbs[name](**settings, on_progress=on_progress)


def read_setup(
    recipe: str | Path, changes: Mapping[str, Any], verbs: Mapping[str, Verb]
) -> tuple[str, dict[str, Any]]:
    """Return a verb and its keywords, of a file with changes on top; raise with everything that is wrong.

    A published comparison, which has a table `honest`, is one of `compare`.
    """
    path = Path(recipe)
    if str(recipe).partition(":")[0] in names():
        settings: dict[str, Any] = {"verb": "compare", "recipe": str(recipe)}
    else:
        with reading(path, "a recipe in TOML"):
            settings = tomllib.loads(path.read_text(encoding="utf-8"))
        if any(mode in settings for mode in MODES):
            settings = {"verb": "compare", "recipe": str(path)}
    check_harmless(settings, path)
    settings |= {name.replace("-", "_"): value for name, value in changes.items()}
    settings.pop("about", None)
    verb = settings.pop("verb", None)
    if verb not in verbs:
        hint = suggest(str(verb), verbs) if verb else "."
        raise FormatError(f"{path}: `verb` is {verb!r}{hint} Valid: {', '.join(verbs)}", path)
    wrong = _find_wrong(verbs[verb], settings)
    if wrong:
        counted = f"{len(wrong)} mistake{'s' if len(wrong) > 1 else ''}"
        raise FormatError(f"{path} has {counted}: {'; '.join(wrong)}", path)
    return verb, settings


def check_harmless(settings: Mapping[str, Any], path: Path) -> None:
    """Raise if a file would run Python: only what is typed may ask for that."""
    asked = [name for name in TRUSTING if settings.get(name)]
    asked += [name for name, value in settings.items() if name != "folder" and ".py" in str(value)]
    if asked:
        advice = f"type it: espalier run {path} {asked[0]}=…"
        raise FormatError(f"{path} would run Python by its key {asked[0]}; if you trust it, {advice}", path)


def _find_wrong(verb: Verb, settings: Mapping[str, Any]) -> list[str]:
    """Return a sentence about every key that is unknown, missing or has a wrong value."""
    parameters = signature(verb).parameters.values()
    known = {p.name for p in parameters if p.kind is not Parameter.VAR_KEYWORD} - {"on_progress"}
    open_ended = [p for p in parameters if p.kind is Parameter.VAR_KEYWORD]
    if open_ended:
        known |= {*SessionOptions.__annotations__} - {"tokenizer"}
    if any(p.annotation in (Any, "Any") for p in open_ended):  # further keywords of a budget or a training
        known |= set(Keywords.model_fields)
    needed = [
        p.name for p in parameters if p.default is Parameter.empty and p.kind is not Parameter.VAR_KEYWORD
    ]
    wrong = [f"unknown key {name}{suggest(name, sorted(known))}" for name in settings if name not in known]
    wrong += [f"{name} is missing" for name in needed if name not in settings]
    return wrong + [message for _, message in find_wrong_keywords(settings)]


def parse_changes(words: list[str]) -> dict[str, Any]:
    """Return {"remove": 0.5} of `remove=0.5`."""
    pairs = [word.partition("=") for word in words]
    wrong = [name for name, equals, value in pairs if not (name and equals and value)]
    if wrong:
        raise FormatError(f"changes are KEY=VALUE; got {', '.join(map(repr, wrong))}")
    return {name: parse_value(value) for name, _, value in pairs}
