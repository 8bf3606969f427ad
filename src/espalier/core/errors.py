"""The one error, and the words that go with it. No imports of weight: the command line starts with this."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class EspalierError(ValueError):
    """Every error the toolkit raises on purpose: what was seen, what would do, what to type next."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Ends a sentence about a wrong name: `, did you mean 'gnorm'?`, or just a full stop."""
    near = get_close_matches(name, list(known), n=1)
    return f", did you mean {near[0]!r}?" if near else "."


def differences(before: Any, now: Any, name: str = "") -> str:
    """`step 3, now 1`: what of two descriptions is not the same."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        return "; ".join(
            differences(before.get(k), now.get(k), f"{name} {k}".strip()) for k in keys
        )
    return f"{name} {_short(before)}, now {_short(now)}".strip()


def _short(value: Any) -> str:
    text = "not said" if value is None else str(value)
    return text if len(text) < 60 else text[:57] + "…"
