"""What is known, and where a model can be cut: lists for people and programs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .. import criteria, tasks
from ..architectures import support
from ..architectures.infer import infer_table
from ..architectures.sites import sites
from ..core.errors import UnknownNameError, UnsupportedError
from ..evaluation import metrics
from ..evaluation.cost import cost, short
from ..experiment.verb import verb
from ..storage.resolve import outline
from . import figures
from .outcome import Outcome
from .tables import Table


def catalogue(what: str, more: dict[str, Callable[[], list[dict[str, str]]]] | None = None) -> Outcome:
    """List architectures, criteria, metrics, tasks or figures; `more` adds lists of higher rooms."""
    lists = {
        "architectures": support.rows,
        "criteria": _criteria,
        "metrics": lambda: [
            {"metric": name, "of": metrics.load(name).kind, "label": metrics.load(name).label}
            for name in metrics.names()
        ],
        "tasks": lambda: [{"task": name, "about": about} for name, about in tasks.descriptions().items()],
        "figures": lambda: [
            {"figure": name, "about": _first_line(figures.load(name))} for name in figures.names()
        ],
        **(more or {}),
    }
    if what not in lists:
        raise UnknownNameError("list", what, lists, "what")
    rows = lists[what]()
    return Outcome({what: rows}, [Table(rows, caption=f"{len(rows)} {what}")])


def _first_line(module: Any) -> str:
    return (module.__doc__ or "").strip().partition("\n")[0]


def _criteria() -> list[dict[str, str]]:
    rows = []
    for name in criteria.names():
        found = criteria.load(name)
        row = {"criterion": name, "targets": ", ".join(found.targets), "scope": found.scope}
        row |= {"options": ", ".join(found.options), "about": _first_line(sys.modules[found.__module__])}
        rows.append(row)
    return rows


@verb
def look(model: str, *, tokens: int = 128, infer: bool = False, trust_remote_code: bool = False) -> Outcome:
    """Return the sites of a model with the cost of a unit, or the proposal of a table for it."""
    found = outline(model, trust_remote_code=trust_remote_code)
    if not infer:
        return _sites(found, model, tokens)
    table = infer_table(found)
    if not table.specs:
        raise UnsupportedError(f"no heads and no neurons can be recognised in {table.model_type}")
    notes = [f"not inferred: {line}" for line in table.unknown]
    notes.append("Save the table to a file and check it: espalier check architecture FILE.py")
    return Outcome({"table": table.source(), "unknown": table.unknown}, notes=notes)


def _sites(model: Any, name: str, tokens: int) -> Outcome:
    total = cost(model, tokens)
    rows: list[dict[str, Any]] = [
        {
            "site": site.name,
            "units": site.units,
            "parameters/unit": site.parameters_per_unit(),
            "MACs/unit": site.macs_per_unit(tokens),
            "query heads/unit": site.group,
            "uses": site.uses,
            "cuttable": site.uncuttable or True,
        }
        for site in sites(model)
    ]
    facts = {"model": name, "class": type(model).__name__, **total.dict(), "sites": rows}
    shown = [{**row, **{key: short(row[key]) for key in ("parameters/unit", "MACs/unit")}} for row in rows]
    for row in shown:
        row["cuttable"] = "yes" if row["cuttable"] is True else "no"
    usual = {"query heads/unit": 1, "uses": 1, "cuttable": "yes"}
    left_out = {key for key, value in usual.items() if all(row[key] == value for row in shown)}
    shown = [{key: str(value) for key, value in row.items() if key not in left_out} for row in shown]
    caption = (
        f"{name}: {type(model).__name__}, {total.heads} heads, {total.neurons} neurons, "
        f"{short(total.parameters)} parameters, {short(total.macs)} MACs in its blocks at {tokens} tokens"
    )
    return Outcome(facts, [Table(shown, caption=caption)])
