"""espalier watch: the page of a run while it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app
from .show import say


@app.command(epilog="Examples: espalier watch run · espalier watch run --port 9000")
def watch(
    run: Annotated[Path, typer.Argument(help="The folder of a comparison, begun or finished.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to serve, on this machine only.")] = 8765,
) -> None:
    """Serve the page of a run on this machine; it renews itself as rows are added. Ctrl-C ends it."""
    from ..reports.server import open_server

    server = open_server(run, port)
    say(f"http://127.0.0.1:{port}/ shows {run}; Ctrl-C ends this, not the run.", err=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt as error:
        error.add_note("the page is no longer served; the run goes on. Repeat it to see the page again")
        raise
    finally:
        server.server_close()
