"""The command line: one function per verb, no logic."""

from __future__ import annotations

import json as json_
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Make transformers smaller: see where they can be cut, and check that it is exact.",
    epilog="Examples: espalier look google-bert/bert-base-uncased · espalier list anatomies · "
    "espalier check anatomy llama",
)
check_app = typer.Typer(no_args_is_help=True, help="Prove that something is right.")
app.add_typer(check_app, name="check")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]


@app.callback(invoke_without_command=True)
def version(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        from . import __version__

        typer.echo(f"espalier {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:  # pragma: no cover - no_args_is_help prints the help
        raise typer.Exit


@app.command(
    epilog="Examples: espalier look google-bert/bert-base-uncased · espalier look ./folder --json · "
    "espalier look llama --tokens 512 · espalier look falcon --guess > falcon.py"
)
def look(
    model: Annotated[
        str,
        typer.Argument(help="A name on the hub, a local folder, a config file or a model type."),
    ],
    tokens: Annotated[
        int, typer.Option(min=1, help="Sequence length the costs are quoted at.")
    ] = 128,
    guess: Annotated[
        bool, typer.Option(help="Propose a table for an unknown architecture.")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option(help="Run code that the model brings along.")
    ] = False,
    json: Json = False,
) -> None:
    """Print the sites of a model: units, parameters and multiply-accumulates per unit."""
    _hush()
    from .sources import outline

    with _console(stderr=True).status(f"looking for {_plain(model)}"):
        found = outline(model, trust_remote_code=trust_remote_code)
    if guess:
        _print_guess(found, json)
        return
    _print_sites(found, model, tokens, json)


@app.command("list", epilog="Examples: espalier list anatomies · espalier list criteria --json")
def list_(
    what: Annotated[str, typer.Argument(help="anatomies or criteria")],
    json: Json = False,
) -> None:
    """List what is known."""
    from .errors import EspalierError, suggest

    lists = {"anatomies": _anatomies, "criteria": _criteria}
    if what not in lists:
        raise EspalierError(
            f"cannot list {what!r}{suggest(what, lists)} There are: {', '.join(lists)}"
        )
    rows = lists[what]()
    if json:
        typer.echo(json_.dumps(rows, indent=1, ensure_ascii=False))
        return
    _table(rows, caption=f"{len(rows)} {'model types' if what == 'anatomies' else what}")


@check_app.command(
    epilog="Examples: espalier check anatomy llama · espalier check anatomy ./falcon.py"
)
def anatomy(
    what: Annotated[
        str, typer.Argument(help="A model type, or a Python file that defines ANATOMY.")
    ],
    json: Json = False,
) -> None:
    """Run the contract on one anatomy: gated ≡ cut, save → load, generation, exact counts, and the rest."""
    _hush()
    from rich.progress import track

    from .anatomy import learn, load_table
    from .contract import CHECKS

    kinds = list(learn(load_table(what)).models) if what.endswith(".py") else [_known(what)]
    jobs = [(kind, name) for kind in kinds for name in CHECKS]
    rows = []
    for kind, name in track(
        jobs, description=f"checking {what}", console=_console(stderr=True), transient=True
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
        _table(rows)
    if len(rows) < len(jobs):
        _fail(f"stopped after {len(rows)} of {len(jobs)} checks", code=130)
    if any(row["result"] != "ok" for row in rows):
        raise typer.Exit(1)


# ------------------------------------------------------------------------------------------ printing


def _failure(error: Exception) -> str:
    """The error, and the line that raised it: often the attribute that a table forgot to keep in step."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = (
        ""
        if isinstance(error, AssertionError)
        else f" (at {Path(last.filename).name}: {last.line})"
    )
    return f"{type(error).__name__}: {error}{where}"


def _known(kind: str) -> str:
    from .anatomy import anatomies
    from .errors import EspalierError, suggest

    if kind not in anatomies():
        raise EspalierError(
            f"no anatomy {kind!r}{suggest(kind, anatomies())} Type espalier list anatomies, "
            "or give a Python file that defines ANATOMY"
        )
    return kind


def _anatomies() -> list[dict[str, str]]:
    from .support import rows

    return rows()


def _criteria() -> list[dict[str, str]]:
    from .criteria import load, names

    rows = []
    for name in names():
        module = sys.modules[load(name).__module__]
        about = (module.__doc__ or "").strip().splitlines()[0]
        rows.append({"criterion": name, "scores": ", ".join(load(name).kinds), "about": about})
    return rows


def _print_sites(model: Any, name: str, tokens: int, json: bool) -> None:
    from .anatomy import sites
    from .measure import cost, short

    found, total = sites(model), cost(model, tokens)
    rows = [
        {
            "site": s.name,
            "units": s.units,
            "parameters/unit": s.parameters_per_unit(),
            "MACs/unit": s.macs_per_unit(tokens),
            "query heads/unit": s.group,
            "uses": s.uses,
            "cuttable": s.part.uncuttable or True,
        }
        for s in found
    ]
    if json:
        typer.echo(
            json_.dumps(
                {"model": name, "class": type(model).__name__, **total.dict(), "sites": rows},
                indent=1,
            )
        )
        return
    for row in rows:
        row["parameters/unit"] = short(row["parameters/unit"])
        row["MACs/unit"] = short(row["MACs/unit"])
        row["cuttable"] = "yes" if row["cuttable"] is True else "no"
    for column, plain in (("query heads/unit", 1), ("uses", 1), ("cuttable", "yes")):
        if all(row[column] == plain for row in rows):
            for row in rows:
                del row[column]
    _table(
        rows,
        caption=f"{name}: {type(model).__name__}, {total.heads} heads, {total.neurons} neurons, "
        f"{short(total.parameters)} parameters, {short(total.macs)} MACs in its blocks at {tokens} tokens",
    )


def _print_guess(model: Any, json: bool) -> None:
    from .guess import guess

    found = guess(model)
    if json:
        typer.echo(json_.dumps({"table": found.source(), "unknown": found.unknown}, indent=1))
        return
    typer.echo(found.source(), nl=False)
    console = _console(stderr=True)
    if not found.parts:
        from .errors import EspalierError

        raise EspalierError(f"no heads and no neurons that can be recognised in {found.model_type}")
    for line in found.unknown:
        console.print("not found out:", line, markup=False, highlight=False)
    console.print(
        "Save the table to a file and let the contract judge it: espalier check anatomy FILE.py",
        markup=False,
        highlight=False,
    )


def _table(rows: list[dict[str, Any]], caption: str = "") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, caption=Text(caption), caption_justify="left")
    for column in rows[0] if rows else ():
        numbers = all(isinstance(row[column], int) for row in rows) or "/" in column
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:  # Text, not markup: names come from outside
        table.add_row(*(Text(str(value)) for value in row.values()))
    console = _console()
    if not console.is_terminal:
        console.width = 160  # a pipe has no width of its own
    console.print(table)


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr)


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _hush() -> None:
    """Warnings about odd little configs, retries and other people's progress bars are noise here."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    hub.set_verbosity_error()


def main() -> None:
    """Run, and end in a sentence rather than a traceback."""
    from .errors import EspalierError

    try:
        app()
    except EspalierError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("stopped", code=130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as error:
        if os.environ.get("ESPALIER_DEBUG"):
            raise
        _fail(f"{type(error).__name__}: {error}\nSet ESPALIER_DEBUG=1 to see where.", code=2)


def _fail(message: str, code: int = 1) -> None:
    print(f"espalier: {message}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
