"""The logger of the toolkit: it writes to stderr unless the program set up logging of its own."""

import logging
import sys

from .terminal import visible


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
