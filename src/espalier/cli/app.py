"""The program; every verb of it is a file in this folder."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Make transformers smaller: train, score, prune, compare, measure, report and ship them.",
    epilog="Examples: espalier look google-bert/bert-base-uncased · espalier train minilm --task demo · "
    "espalier compare tuned --task demo -o run · espalier prune tuned --task demo --tolerance 0.01 -o small",
)
check_app = typer.Typer(no_args_is_help=True, help="Check an architecture, a criterion or gradients.")
app.add_typer(check_app, name="check")


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        from .. import __version__

        typer.echo(f"espalier {__version__}")
        raise typer.Exit
