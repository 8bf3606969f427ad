"""Strategies: a criterion, whether it scores again after every cut, and from which end it removes.

gnorm   gnorm:static   gnorm:reverse   gnorm:objective=loss   entropy:form=C:reverse   taylor:step=4
random:25   random:25:every=6   ./mine.py:static
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import criteria
from ..core.errors import EspalierError, suggest

WORDS = ("static", "greedy", "reverse")
AUTO = "auto"  # as many a step as is safe: see stepping.py


@dataclass(frozen=True)
class Strategy:
    """How units are removed, one after the other."""

    label: str  # as typed: it names the strategy everywhere
    criterion: str
    options: dict[str, Any] = field(default_factory=dict)
    rescore: bool = True
    reverse: bool = False
    trials: int | None = None  # of a random order; None: there is one order
    every: int | None = None  # units removed between two measurements
    step: int | str = 1  # units removed between two scorings, or auto

    def settings(self) -> dict[str, Any]:
        """All that decides its rows, for a run that goes on to be held against."""
        told = asdict(self)
        if self.criterion.endswith(".py"):
            code = Path(self.criterion).read_bytes()
            told["code"] = hashlib.blake2b(code, digest_size=8).hexdigest()
        return told

    @property
    def key(self) -> str:
        """Names the scores of the unpruned model: strategies that share it share them."""
        told = ",".join(f"{k}={v}" for k, v in sorted(self.options.items()))
        return f"{self.criterion}({told})"


def parse(text: str, *, every: int | None = None, step: int | str | None = None) -> list[Strategy]:
    """A list with commas between: `gnorm,gnorm:static,random:25`; `every` and `step` for those without."""
    usual = {name: value for name, value in (("every", every), ("step", step)) if value}
    found = [_one(piece.strip(), usual) for piece in text.split(",") if piece.strip()]
    if not found:
        raise EspalierError("no strategy given. Type for example: --by gnorm,gnorm:static,random:25")
    labels = [strategy.label for strategy in found]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise EspalierError(f"{twice[0]} is asked for twice")
    return found


def _one(label: str, usual: Mapping[str, Any]) -> Strategy:
    name, *words = label.split(":")
    criterion = criteria.load(name)
    settings: dict[str, Any] = {**usual, "rescore": getattr(criterion, "rescored", False)}
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key == "step":
            settings[key] = value if value == AUTO else _count(value, word)
        elif equals and key == "every":
            settings[key] = _count(value, word)
        elif equals:
            options[key] = _value(value)
        elif word.isdigit():
            settings["trials"] = _count(word, word)
        elif word in ("static", "greedy"):
            settings["rescore"] = word == "greedy"
        elif word == "reverse":
            settings["reverse"] = True
        else:
            raise EspalierError(
                f"{label}: {word!r} says nothing{suggest(word, WORDS)} A strategy is a criterion, then after "
                "colons: static, greedy, reverse, every=N, step=N, trials (a number), or option=value"
            )
    known = _options(criterion)
    for key in options:
        if key not in known:
            raise EspalierError(
                f"{label}: {name} has no option {key!r}{suggest(key, known)} "
                f"It has: {', '.join(known) or 'none'}"
            )
    if name == "random":
        settings = {"trials": 1, **settings, "rescore": False}
    elif "trials" in settings:
        raise EspalierError(f"{label}: only random has trials; {name} gives the same order every time")
    if not settings["rescore"] and settings.get("step") == AUTO:
        settings["step"] = 1  # nothing is scored again
    strategy = Strategy(label, name, options, **settings)
    if strategy.every and strategy.rescore:
        if strategy.step == AUTO:
            return replace(strategy, every=None)  # it is measured wherever it is scored
        if strategy.every % int(strategy.step):
            raise EspalierError(f"{label}: every must be a multiple of step")
    return strategy


def check_keep(keep: float) -> None:
    """Before the first hour, not after it."""
    if not 0 <= keep < 1:
        raise EspalierError(f"keep is a fraction of the units, from 0 to below 1; got {keep!r}")


def _options(criterion: Any) -> list[str]:
    named = inspect.signature(inspect.unwrap(criterion)).parameters.values()
    return [p.name for p in named if p.kind is p.KEYWORD_ONLY]


def _count(text: str, word: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise EspalierError(f"{word!r} should be a whole number from 1")
    return int(text)


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
