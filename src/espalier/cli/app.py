"""The program itself; every verb of it is a file beside this one."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Make transformers smaller: train, score, prune, compare, measure, report and ship them.",
    epilog="Examples: espalier look google-bert/bert-base-uncased · "
    "espalier train MODEL --task demo -o tuned · espalier compare tuned --task demo -o run · "
    "espalier report run",
)
check_app = typer.Typer(no_args_is_help=True, help="Prove that something is right.")
app.add_typer(check_app, name="check")


@app.callback(invoke_without_command=True)
def version(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        from .. import __version__

        typer.echo(f"espalier {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:  # pragma: no cover - no_args_is_help prints the help
        raise typer.Exit
