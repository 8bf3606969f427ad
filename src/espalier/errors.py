"""The one error, and the hint that goes with a wrong name. No imports: the command line starts with this."""

from collections.abc import Iterable
from difflib import get_close_matches


class EspalierError(ValueError):
    """Every error the toolkit raises on purpose: what was seen, what would do, what to type next."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Ends a sentence about a wrong name: `, did you mean 'gnorm'?`, or just a full stop."""
    near = get_close_matches(name, list(known), n=1)
    return f", did you mean {near[0]!r}?" if near else "."
