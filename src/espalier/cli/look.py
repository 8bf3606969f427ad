"""espalier look: where a model can be cut."""

from __future__ import annotations

import json as json_
from typing import Annotated, Any

import typer

from .app import app
from .show import Json, console, hush, plain, table


@app.command(
    epilog="Examples: espalier look google-bert/bert-base-uncased · espalier look ./folder --json · "
    "espalier look llama --tokens 512 · espalier look falcon --guess > falcon.py"
)
def look(
    model: Annotated[
        str,
        typer.Argument(help="A name on the hub, a local folder, a config file or a model type."),
    ],
    tokens: Annotated[int, typer.Option(min=1, help="Sequence length the costs are quoted at.")] = 128,
    guess: Annotated[bool, typer.Option(help="Propose a table for an unknown architecture.")] = False,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that the model brings along.")] = False,
    json: Json = False,
) -> None:
    """Print the sites of a model: units, parameters and multiply-accumulates per unit."""
    hush()
    from ..storage.resolve import outline

    with console(stderr=True).status(f"looking for {plain(model)}"):
        found = outline(model, trust_remote_code=trust_remote_code)
    if guess:
        _print_guess(found, json)
        return
    _print_sites(found, model, tokens, json)


def _print_sites(model: Any, name: str, tokens: int, json: bool) -> None:
    from ..architectures.table import sites
    from ..evaluation.cost import cost, short

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
    for column, usual in (("query heads/unit", 1), ("uses", 1), ("cuttable", "yes")):
        if all(row[column] == usual for row in rows):
            for row in rows:
                del row[column]
    table(
        rows,
        caption=f"{name}: {type(model).__name__}, {total.heads} heads, {total.neurons} neurons, "
        f"{short(total.parameters)} parameters, {short(total.macs)} MACs in its blocks at {tokens} tokens",
    )


def _print_guess(model: Any, json: bool) -> None:
    from ..architectures.infer import guess

    found = guess(model)
    if json:
        typer.echo(json_.dumps({"table": found.source(), "unknown": found.unknown}, indent=1))
        return
    typer.echo(found.source(), nl=False)
    screen = console(stderr=True)
    if not found.parts:
        from ..core.errors import EspalierError

        raise EspalierError(f"no heads and no neurons that can be recognised in {found.model_type}")
    for line in found.unknown:
        screen.print("not found out:", line, markup=False, highlight=False)
    screen.print(
        "Save the table to a file and let the contract judge it: espalier check architecture FILE.py",
        markup=False,
        highlight=False,
    )
