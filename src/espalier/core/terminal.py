"""What is shown on a terminal: the logger of the toolkit, and texts of others made harmless.

The logger writes to stderr unless the program set up logging of its own. Names come from files of others and
may hold sequences that a terminal obeys.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

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


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Write to the current sys.stderr, unless the root logger has handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr  # looked up every time: programs and tests replace it
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


log = logging.getLogger("espalier")
if not log.handlers:
    log.addHandler(_Stderr())
    if log.level == logging.NOTSET:  # a level that the user chose stays
        log.setLevel(logging.INFO)


def muted() -> AbstractContextManager[None]:
    """Leave out all messages of the toolkit."""
    return logged_once({""}, lambda record: "")


def by_template(record: logging.LogRecord) -> str:
    """Return what tells messages apart: their text before values are put in."""
    return str(record.msg)


@contextmanager
def logged_once(
    seen: set[str], key: Callable[[logging.LogRecord], str] = logging.LogRecord.getMessage
) -> Iterator[None]:
    """Leave out messages of the toolkit that were `seen` before, by their text or another `key`."""

    def is_new(record: logging.LogRecord) -> bool:
        text = key(record)
        known = text in seen
        seen.add(text)
        return not known

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)
