"""espalier check: prove that something is right."""

from __future__ import annotations

import json as json_
import traceback
from pathlib import Path
from typing import Annotated

import typer

from .app import check_app
from .show import Json, console, fail, hush, table


@check_app.command(
    epilog="Examples: espalier check architecture llama · espalier check architecture ./falcon.py"
)
def architecture(
    what: Annotated[str, typer.Argument(help="A model type, or a Python file that defines ARCHITECTURE.")],
    json: Json = False,
) -> None:
    """Run the contract on one architecture: gated ≡ cut, save → load, generation, exact counts, and the rest."""
    hush()
    from rich.progress import track

    from ..architectures.table import learn, load_table
    from ..testing.architecture import CHECKS

    kinds = list(learn(load_table(what)).models) if what.endswith(".py") else [_known(what)]
    jobs = [(kind, name) for kind in kinds for name in CHECKS]
    rows = []
    for kind, name in track(
        jobs, description=f"checking {what}", console=console(stderr=True), transient=True
    ):
        try:
            CHECKS[name](kind)
            rows.append({"type": kind, "check": name, "result": "ok"})
        except KeyboardInterrupt:
            break  # what is finished is still worth seeing
        except Exception as error:  # whatever a wrong table makes of a model, it is a failed check
            rows.append({"type": kind, "check": name, "result": _failure(error)})
    if json:
        typer.echo(json_.dumps(rows, indent=1, ensure_ascii=False))
    else:
        table(rows)
    if len(rows) < len(jobs):
        fail(f"stopped after {len(rows)} of {len(jobs)} checks", code=130)
    if any(row["result"] != "ok" for row in rows):
        raise typer.Exit(1)


def _failure(error: Exception) -> str:
    """The error, and the line that raised it: often the attribute that a table forgot to keep in step."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if isinstance(error, AssertionError) else f" (at {Path(last.filename).name}: {last.line})"
    return f"{type(error).__name__}: {error}{where}"


def _known(kind: str) -> str:
    from ..architectures.table import architectures
    from ..core.errors import EspalierError, suggest

    if kind not in architectures():
        raise EspalierError(
            f"no architecture {kind!r}{suggest(kind, architectures())} Type espalier list architectures, "
            "or give a Python file that defines ARCHITECTURE"
        )
    return kind
