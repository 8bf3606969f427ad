"""Dry runs for people: what would be done, and how long it should take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tables import Table


def estimate_tables(facts: Mapping[str, Any]) -> list[Table]:
    """Show what would be done, and how long it should take."""
    where = f" in {facts['folder']}" if facts["folder"] else ""
    if "budgets" in facts:
        return [_budget_table(facts, where)]
    if "methods" not in facts:
        about = f"{facts['steps']} steps of {1e3 * facts['step']:.0f} ms, as measured now"
        row = {"examples": str(facts["examples"]), "epochs": str(facts["epochs"])}
        row |= {"steps": str(facts["steps"]), "about": duration(facts["seconds"])}
        return [Table([row], f"would train {facts['model']} on {facts['task']}{where}", about)]
    rows = [
        {"method": one["method"], "rows": str(one["rows"]), "scorings": str(one["scorings"])}
        | {"at most about": duration(one["seconds"])}
        for one in facts["methods"]
    ]
    there = f", {facts['rows there']} of them are there" if facts["rows there"] else ""
    about = f"{facts['rows']} rows{there}; at most about {duration(facts['seconds'])} by passes measured now"
    title = f"would compare {facts['model']} on {facts['task']}, {facts['units']} {facts['target']}{where}"
    return [Table(rows, title, f"{about}: {facts['pass']:.3g} s over the validation data, unpruned")]


def _budget_table(facts: Mapping[str, Any], where: str) -> Table:
    """Show the parts of a pruning to budgets."""
    each = {"scoring": f"{facts['stages']} stages", "repairing": f"{facts['repairs']} × {facts['repair']}"}
    rows = [
        {"work": name, "": each.get(name, ""), "about": duration(seconds)}
        for name, seconds in facts["parts"].items()
        if seconds
    ]
    asked = ", ".join(f"{one['kind']} {one['asked']}" for one in facts["budgets"])
    title = f"would prune {facts['model']} on {facts['task']} to {asked}{where}"
    units = f"{facts['units']} {facts['target'].replace(',', ' and ')}"
    about = f"{units} by {facts['method']}; about {duration(facts['seconds'])} by "
    return Table(rows, title, f"{about}what a few batches took now")


def duration(seconds: float) -> str:
    """Return a time as a person says it: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
