"""Exporters and quantisers print, warn and report to their makers; here they do none of it."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

# Conversion and quantisation for OpenVINO send usage data unless one of these says that nobody is there.
UNATTENDED = {"CI": "true", "NNCF_CI": "1"}


@contextmanager
def silenced() -> Iterator[None]:
    """Discard what libraries print and log below an error, and let them send nothing."""
    before = {name: os.environ.get(name) for name in UNATTENDED}
    level = logging.root.manager.disable
    os.environ.update(UNATTENDED)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
