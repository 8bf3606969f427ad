"""One sentence about a run: which method removes most, what it costs, what it is worth on test data."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.curves import Tolerance
from ..analysis.results import Key, Results
from ..analysis.summary import Row
from . import text
from .tables import tested_change

FEW = 100  # examples: of fewer, a reader should know


def best(results: Results, rows: Sequence[Row]) -> Key:
    """Return the curve that removes most within the tolerance: not a random one, if there are others."""
    row = _ordered(results, rows)[0]
    return row["method"], row["phase"]


def _ordered(results: Results, rows: Sequence[Row]) -> list[Row]:
    rows = [row for row in rows if row["model"] == results.model]
    sign = 1 if text.is_lower_better(results.metric) else -1
    return sorted(rows, key=lambda row: (bool(row.get("trials")), -row["removed"], sign * row["validation"]))


def verdict(results: Results, rows: Sequence[Row], tolerance: Tolerance) -> str:
    """Return the sentence, of the rows of one run in the summary."""
    near = text.describe_tolerance(tolerance, results.metric)
    first, *others = _ordered(results, rows)
    if not first["removed"]:
        return f"No method removes anything within {near} of the unpruned model."
    what = f"{text.of_units(results)} {results.target}" if results.counted else f" of the {results.target}"
    does = f"{_name(results, first)} removes {text.level(results, first['removed'])}{what}"
    does += f" within {near} on validation"
    smaller = [_smaller(first, "parameters", "parameters"), _smaller(first, "macs", "MACs")]
    means = "; ".join(filter(None, [", ".join(filter(None, smaller)), _tested(results, first)]))
    what = f" {results.target} removed" if results.counted else f" of the {results.target} removed"
    rivals = [""]
    for row in [r for r in others if not r.get("trials")][:1]:
        rivals.append(f"Next best: {_name(results, row)} with {text.level(results, row['removed'])}{what}.")
    for row in [r for r in others if r.get("trials")][:1]:
        rivals.append(f"At random ({_name(results, row)}): {text.level(results, row['removed'])}{what}.")
    return f"{does}: {means}.{' '.join(rivals)}"


def _name(results: Results, row: Row) -> str:
    return text.name(results, (row["method"], row["phase"]))


def _smaller(row: Row, name: str, label: str) -> str:
    before, after = row[f"{name} before"], row[f"{name} after"]
    return (
        f"{100 * (1 - after / before):.0f} % fewer {label}"
        if before and after is not None and after < before
        else ""
    )


def _tested(results: Results, row: Row) -> str:
    split = "test" if row.get("test after") is not None else "validation"
    before, after = (
        (row["test before"], row["test after"]) if split == "test" else (row["base"], row["validation"])
    )
    shown = text.arrow(text.value(results.metric, before, unit=False), text.value(results.metric, after))
    change = f" ({tested_change(results, row)})" if split == "test" else ""
    n = results.examples.get(split) or FEW
    few = f", on {text.examples(results, split)} only" if n < FEW else ""
    return f"{split} {results.metric} {shown}{change}{few}"
