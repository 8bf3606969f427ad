"""The command line: one file per verb, no logic."""

from __future__ import annotations

import os
import sys

from . import (
    check,
    compare,
    encode,
    evaluate,
    gradients,
    listing,
    look,
    prune,
    recover,
    report,
    score,
    train,
)
from .app import app
from .show import fail


def main() -> None:
    """Run, and end in a sentence rather than a traceback."""
    from ..core.errors import EspalierError

    try:
        app()
    except EspalierError as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("stopped", code=130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as error:
        if os.environ.get("ESPALIER_DEBUG"):
            raise
        fail(f"{type(error).__name__}: {error}\nSet ESPALIER_DEBUG=1 to see where.", code=2)
