"""The tables: tidy CSV and XLSX for programs, Markdown for people."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis.curves import Curve
from ..analysis.results import Results
from ..io.spreadsheet import plain_cell, write_book
from . import words

Row = dict[str, Any]


def tidy(results: Results) -> Iterator[Row]:
    """Everything measured, one row for each strategy, trial, level and part of the data."""
    for label in results.labels:
        runs: list[tuple[int | None, Curve]] = []
        if label in results.curves:
            runs = [(None, results.curves[label])]
        if label in results.trials:
            runs = list(enumerate(results.trials[label].curves))
        order = results.orders.get(label, [])
        for trial, curve in runs:
            for k, value in zip(curve.removed, curve.accuracy):
                unit = order[k - 1] if 0 < k <= len(order) else (None, None)
                yield _measured(results, label, trial, k, "validation", value, unit)
    for label, levels in results.test.items():
        for k, values in levels.items():
            for trial, value in enumerate(values):
                number = trial if label in results.trials else None
                yield _measured(results, label, number, k, "test", value, (None, None))


def _measured(
    results: Results,
    label: str,
    trial: int | None,
    k: int,
    part: str,
    value: float,
    unit: tuple[int | None, int | None],
) -> Row:
    cost = results.cost(label, k)
    return {
        "model": results.model,
        "strategy": label,
        "trial": trial,
        "part": part,
        "removed": k,
        "kept": results.units - k,
        "layer": unit[0],
        "unit": unit[1],
        "metric": results.metric,
        "value": results.show(value),
        "parameters": cost.parameters,
        "macs": cost.macs,
    }


def write_csv(path: Path, rows: Sequence[Row]) -> Path:
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    for row in grid(rows):
        lines.writerow([plain_cell(value) for value in row])
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def write_xlsx(path: Path, sheets: Mapping[str, Sequence[Row]]) -> Path:
    write_book(path, {name: grid(rows) for name, rows in sheets.items() if rows})
    return path


def grid(rows: Sequence[Row]) -> list[list[Any]]:
    """A header and the cells below it; rows of several models may have different columns."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return [columns, *([row.get(name) for name in columns] for row in rows)]


def short_summary(rows: Sequence[Row], brief: bool = False) -> list[dict[str, str]]:
    """The summary of one model as a person reads it, without empty columns; `brief` fits a screen."""
    said = [_short(row, brief) for row in rows]
    used = [name for name in (said[0] if said else ()) if any(row[name] for row in said)]
    return [{name: row[name] for name in used} for row in said]


def _short(row: Row, brief: bool) -> dict[str, str]:
    metric = row["metric"]

    def ends(name: str, say: Any) -> str:
        return words.span(*(say(metric, row[f"{name} {end}"]) for end in ("low", "high")))

    def value(name: str) -> str:
        if brief:
            return bare(metric, row[name])
        spread = _trials(row, name) if f"{name} lowest" in row else ""
        return bare(metric, row[name]) + ends(name, bare) + spread

    def change(name: str) -> str:
        said = words.difference(metric, row[name])
        return said and said + ends(name, words.difference)

    tested, above = row["test after"] is not None, row["levels above random mean"]
    before = bare(metric, row["test before"])
    out = {
        "strategy": row["strategy"],
        "removed": f"{_reached(row, row['chosen'])} of {row['units']}",
        "validation": value("validation"),
        "test": f"{before} → {value('test after')}" if tested else "",
        "test change": change("test change"),
        "parameters": _arrow(row, "parameters", lambda n: f"{n / 1e6:.2f}M"),
        "MiB": _arrow(row, "megabytes", lambda n: f"{n:.2f}"),
        "area": value("area"),
        "unbroken 1/2/5": "/".join(_reached(row, row[f"unbroken {p}"]) for p in (1, 2, 5)),
        "area − random": change("area over random"),
        "above random": "" if above is None else f"{above}/{row['levels shared']}",
        "above all trials": _of(row, "levels above all trials"),
        "below all trials": _of(row, "levels below all trials"),
    }
    left_out = {"parameters", "above all trials", "below all trials"} if brief else set()
    return {name: said for name, said in out.items() if name not in left_out}


def _reached(row: Row, removed: int) -> str:
    """Where the curve was not measured any further, the number is only known to be no smaller."""
    units = row["units"] if "units" in row else row["removed"] + row["kept"]
    return words.at_least(removed, row["measured to"], units)


def bare(metric: str, number: float | None) -> str:
    return words.value(metric, number, unit=False)


def _of(row: Row, name: str) -> str:
    return "" if row[name] is None else f"{row[name]}/{row['levels shared']}"


def _trials(row: Row, name: str) -> str:
    if row["trials"] is None:
        return ""
    low, high = sorted((row[f"{name} lowest"], row[f"{name} highest"]))
    metric = row["metric"]
    return f" ({words.value(metric, low, False)}–{words.value(metric, high, False)})"


def _arrow(row: Row, name: str, say: Any) -> str:
    before, after = row[f"{name} before"], row[f"{name} after"]
    return "" if before is None or after is None else f"{say(before)} → {say(after)}"


def short_points(rows: Sequence[Row]) -> list[dict[str, str]]:
    """The hand-picked solutions as a person reads them."""
    said = []
    for row in rows:
        metric, before, after = row["metric"], row["megabytes before"], row["megabytes after"]
        known = before is not None and after is not None
        rule = row["rule megabytes"]
        said.append(
            {
                "model": row["model"],
                "strategy": row["strategy"],
                "removed": f"{row['removed']} of {row['removed'] + row['kept']}",
                "metric": f"{words.value(metric, row['before'])} → {words.value(metric, row['after'])}",
                "relative": words.percent(row["relative change"]),
                "MiB": f"{before:.2f} → {after:.2f}" if known else "",
                "MiB relative": words.percent(after / before - 1) if known else "",
                "the rule removes": _reached(row, row["rule removes"]),
                "metric there": words.value(metric, row["rule after"]),
                "MiB there": "" if rule is None else f"{rule:.2f}",
            }
        )
    return said


def short_comparisons(rows: Sequence[Row], metric: str) -> list[dict[str, str]]:
    """Pairs with the interval of their difference."""
    said = []
    for row in rows:
        low, high = (words.difference(metric, row[end]) for end in ("low", "high"))
        near, far = (words.difference(metric, row[f"difference there {x}"]) for x in ("low", "high"))
        there = words.difference(metric, row["difference there"])
        said.append(
            {
                "a − b": f"{row['a']} − {row['b']}",
                "area": words.difference(metric, row["difference"]) + words.span(low, high),
                "a above, b above": f"{row['levels a above']}, {row['levels b above']} of {row['levels']}",
                "at one level": f"{there}{words.span(near, far)} at {row['at']}" if there else "",
                "verdict": row["verdict"],
            }
        )
    return said


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """One table; text from outside cannot break out of its cell."""
    if not rows:
        return ""
    lines = [
        "| " + " | ".join(map(escaped, rows[0])) + " |",
        "|" + "---|" * len(rows[0]),
        *("| " + " | ".join(map(escaped, row.values())) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """As it is, on one line: no table, no markup, no tag, no link."""
    text = re.sub(r"([\\`*|<>])", r"\\\1", " ".join(text.split()))
    return text.replace("](", "]\\(")
