"""The command line: one thin file per verb. It parses, calls espalier.api and prints."""

from __future__ import annotations

import io
import os
import shlex
import sys

from ..core.call import CALL
from . import (
    check,
    clean,
    compare,
    cost,
    encode,
    evaluate,
    export,
    look,
    measure,
    prune,
    push,
    recover,
    report,
    reproduce,
    run,
    score,
    tokens,
    train,
    watch,
)
from . import list as _list
from .app import StoppedError, app
from .show import fail, in_flags, stop

__all__ = ["app", "main"]
_VERBS = (
    check,
    clean,
    compare,
    cost,
    encode,
    evaluate,
    export,
    _list,
    look,
    measure,
    prune,
    push,
    recover,
    report,
    reproduce,
    run,
    score,
    tokens,
    train,
    watch,
)


def main() -> None:
    """Run a command; end in a sentence rather than a traceback."""
    from ..core.errors import EspalierError, InvalidValueError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the terminal cannot show is no error
            stream.reconfigure(errors="backslashreplace")
    typed = CALL.set(f"espalier {shlex.join(sys.argv[1:])}")
    try:
        app()
    except EspalierError as error:
        typed_wrongly = isinstance(error, InvalidValueError)
        fail(in_flags(str(error)), code=2 if typed_wrongly else 1)
    except (KeyboardInterrupt, StoppedError) as error:
        stop(error.__cause__ or error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        fail(f"cannot use {error.filename or 'a file'}: {error.strerror or error}")
    except Exception as error:
        if os.environ.get("ESPALIER_DEBUG"):
            raise
        fail(f"{type(error).__name__}: {error}\nSet ESPALIER_DEBUG=1 to see where.")
    finally:
        CALL.reset(typed)
