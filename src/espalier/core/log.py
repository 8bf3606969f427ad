"""The logger of the toolkit: it writes to stderr unless the program set up logging of its own."""

from __future__ import annotations

import logging
import sys


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Says things to stderr, unless the program has set up logging of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr  # whatever it is now: programs and tests replace it
            super().emit(record)


log = logging.getLogger("espalier")
if not log.handlers:
    log.addHandler(_Stderr())
    log.setLevel(logging.INFO)
