"""Text for a terminal: names come from files of others and may hold sequences that a terminal obeys."""

from __future__ import annotations

import re

# control characters, direction marks, and halves of characters that no encoding can write
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
BREAKS = re.compile("[\t\n]")


def visible(text: str, *, lines: bool = True) -> str:
    r"""Return the text with such characters shown as in JSON, \u001b; with `lines` False line breaks too.

    >>> print(visible("a\x1b[31mb"))
    a\u001b[31mb
    """
    text = HIDDEN.sub(_escape, text)
    return text if lines else BREAKS.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
