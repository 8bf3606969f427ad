"""What the page shows of one run, as plain data: points of curves, orders, costs, the chosen point."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from ...analysis.curves import ONE_SHOT, Tolerance
from ...analysis.results import Key, Results
from ...analysis.summary import Row
from ...evaluation import metrics
from .. import captions, style, text
from ..tables import summary_cells, tested_change
from ..verdict import best
from . import charts, maps

MOST_CELLS = 64  # units of a layer up to which every unit has a cell of the map
MOST_UNITS = 4096  # cells of a map
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 2, 1, 2, 1, 2])
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-left", "stroke")
COLOUR = re.compile("#[0-9a-fA-F]{6}")
RANDOM = "#777777"


def describe(results: Results, sheets: Mapping[str, Sequence[Row]], tolerance: Tolerance) -> dict[str, Any]:
    """Return the facts of one run and the charts of them."""
    keys, metric = results.keys, metrics.load(results.metric)
    levels = [row for row in sheets["by_level"] if row["model"] == results.model]
    points = {text.name(results, key): _points(results, key, levels, tolerance) for key in keys}
    values = [p[name] for some in points.values() for p in some for name in ("value", "lowest", "highest")]
    known = [value for value in values if value is not None]
    about: dict[str, Any] = {
        "methods": [text.name(results, key) for key in keys],
        **_looks(results, keys),
        "metric": text.label(results.metric),
        "share": metric.share,
        "lower": metric.lower_is_better,
        "log": metric.log and max(known) > 4 * min(known),
        "bands": _bands(points),
        "domains": _domains(points, results.majority),
        "base": results.show(results.base),
        "majority": results.majority,
        "removed title": f"{results.target} removed" + (f", of {results.units:,}" if results.counted else ""),
    }
    axes = [x for x in charts.AXES if sum(p[x] is not None for some in points.values() for p in some) > 1]
    costs = [x for x in axes if x != "removed" and len({p[x] for some in points.values() for p in some}) > 2]
    mapped = bool(results.layers) and max(results.layers) <= MOST_CELLS and results.units <= MOST_UNITS
    unit = results.target.removesuffix("s")
    return {
        "about": about,
        "target": results.target,
        "points": points,
        "start": {name: _start(some) for name, some in points.items()},
        "focus": text.name(results, best(results, sheets["summary"])),
        "orders": {text.name(results, key): _order(results, key, mapped) for key in keys},
        "layers": list(results.layers),
        "map": mapped,
        "scores": {text.name(results, key): _scores(results, key) for key in keys} if mapped else {},
        "axes": {x: charts.title(about, x) for x in ["removed", *costs]},
        "curves": {x: charts.curves(about, x) for x in ["removed", *costs]},
        "pareto": {x: charts.pareto(about, x) for x in costs},
        "units": {x: maps.unit_map(results.layers, unit, x) for x in maps.SCORED} if mapped else None,
        "bars": maps.layer_bars(results.layers, results.target) if results.layers else None,
    }


def _domains(
    points: Mapping[str, Sequence[Mapping[str, Any]]], majority: float | None
) -> dict[str, list[float]]:
    """Return the ends of every axis, of all methods: no axis moves with the slider or with what is hidden."""
    some = [p for one in points.values() for p in one]
    found = {axis: [p[axis] for p in some if p[axis] is not None] for axis in charts.AXES}
    bands = [p[name] for p in some for name in ("value", "low", "high", "lowest", "highest")]
    found["value"] = [x for x in (*bands, majority) if x is not None]
    found["removed"].append(0.0)
    return {axis: [min(values), max(values)] for axis, values in found.items() if values}


def _bands(points: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, str, str]]:
    """Return the ends of the bands that there are: of random trials, of intervals."""
    some = [p for one in points.values() for p in one]
    trials = any(p["lowest"] is not None for p in some)
    intervals = any(p["low"] is not None and not p["random"] for p in some)
    return [("lowest", "highest", "true")] * trials + [("low", "high", "false")] * intervals


def _looks(results: Results, keys: Sequence[Key]) -> dict[str, Any]:
    """Return colours by criterion, dashes by the variants of one, shapes by method."""
    criteria: dict[str, str] = {}
    variants: dict[str, int] = {}
    colours, dashes = [], []
    for method, phase in keys:
        own = results.settings.get(method) or {}
        name = own.get("criterion") or method.partition(":")[0]
        free = next((c for c in style.PALETTE if c not in criteria.values()), style.PALETTE[0])
        given = str(own.get("colour") or "")
        colour = criteria.setdefault(name, given if COLOUR.fullmatch(given) else free)
        colours.append(RANDOM if results.curves[method, phase].trials else colour)
        dashes.append(DASHES[variants.setdefault(name, 0) % len(DASHES)])
        variants[name] += 1
    return {
        "colours": colours,
        "dashes": dashes,
        "shapes": [SHAPES[i % len(SHAPES)] for i in range(len(keys))],
    }


def _points(results: Results, key: Key, rows: Sequence[Row], tolerance: Tolerance) -> list[dict[str, Any]]:
    """Return the points of one curve, the unpruned model first."""
    curve, name = results.curves[key], text.name(results, key)
    chosen = curve.within(tolerance)
    own = {row["removed"]: row for row in rows if (row["method"], row["phase"]) == key}
    base = next(row for row in rows if not row["removed"])
    tested = results.test.get(key, {})
    out = []
    for removed in curve.removed:
        row, cost = own.get(removed, base), results.cost(key, removed)
        ends = [row["value low"], row["value high"]]
        trials = [row["lowest trial"], row["highest trial"]] if curve.trials and removed else [None, None]
        trials = [row["value"]] * 2 if curve.trials and not removed else trials  # all begin there
        at = text.level(results, removed) + text.of_units(results)
        point: dict[str, Any] = {"m": name, "removed": removed, "k": results.count(removed), "at": at}
        point |= {"value": row["value"], "low": ends[0], "high": ends[1], "random": bool(curve.trials)}
        point |= dict(zip(("lowest", "highest"), sorted(x for x in trials if x is not None) or trials))
        point["between"] = _between(results, trials if curve.trials and removed else ends)
        point["change"] = _change(results, row) if removed else ""
        point |= {"parameters": cost.parameters, "macs": cost.macs, "mib": cost.megabytes}
        point["ms"] = None if cost.latency is None else 1e3 * cost.latency
        point["chosen"] = bool(removed) and removed == chosen
        score = tested.get(removed)
        point["test"] = text.value(results.metric, results.show(float(np.mean(score)))) if score else ""
        out.append(point)
    return out


def _change(results: Results, row: Row) -> str:
    found = [row[name] for name in ("change", "change low", "change high")]
    return text.change(results.metric, found, results.examples.get("validation"))


def _between(results: Results, ends: Sequence[float | None]) -> str:
    shown = sorted(x for x in ends if x is not None)
    return text.interval(*(text.value(results.metric, x, unit=False) for x in shown)).strip() if shown else ""


def _start(points: Sequence[Mapping[str, Any]]) -> int:
    """Return where the slider starts: the chosen point, or the unpruned model."""
    return next((i for i, point in enumerate(points) if point["chosen"]), 0)


def _order(results: Results, key: Key, mapped: bool) -> dict[str, Any] | None:
    """Return the removals of a walk: the rank of every unit, or what each layer has lost at each level."""
    order = results.orders.get(key[0])
    if not order or not results.layers or key[1] != ONE_SHOT:
        return None
    ranks = {unit: i for i, unit in enumerate(order, 1)}
    if mapped:
        return {"ranks": [[ranks.get((i, j)) for j in range(n)] for i, n in enumerate(results.layers)]}
    removed = [results.count(x) for x in results.curves[key].removed]
    where = np.array([layer for layer, _ in order])
    return {"lost": [np.bincount(where[:k], minlength=len(results.layers)).tolist() for k in removed]}


def _scores(results: Results, key: Key) -> dict[str, Any] | None:
    """Return the scores of the unpruned model by the criterion of a method, and what they are."""
    name = key[0] if key[0] in results.scores else (results.settings.get(key[0]) or {}).get("criterion")
    name = name if name in results.scores else key[0].partition(":")[0]
    if name not in results.scores:
        return None
    found = results.scores[name]
    values = [
        [float(f"{x:.5g}") if np.isfinite(x) else None for x in row[:n]]
        for row, n in zip(found, results.layers)
    ]
    return {"name": name, "values": values}


def describe_rule(results: Results, tolerance: Tolerance) -> str:
    """Return the rule that chooses a point, in one sentence."""
    near = text.describe_tolerance(tolerance, results.metric)
    return (
        f"The chosen point of a method is the end of its longest unbroken stretch within {near} of the "
        "unpruned model on validation data; test data are measured only there."
    )


def describe_curves(results: Results) -> str:
    """Return what lines, bands and marks of the curves are."""
    parts = ["Lines: validation" + (", with 95 % intervals" if results.predictions else "")]
    parts += ["Grey band: all random trials"] * (results.random is not None)
    parts += ["◇ chosen point", "Dashed: the unpruned model"]
    parts += ["Dotted: the most frequent class"] * (results.majority is not None)
    return ". ".join(parts) + "."


def describe_data(results: Results) -> str:
    """Return the data of a run in a few words."""
    return captions.describe_data(results) or results.task


def methods_table(results: Results, rows: Sequence[Row], number: int) -> str:
    """Return one row for each method, which is also the legend: a box shows its curves, its name its look."""
    looks = _looks(results, results.keys)
    rows_of = [_method_cells(results, row) for row in rows]
    columns = [name for name in rows_of[0] if any(cells[name] for cells in rows_of)]
    body = []
    for i, (key, cells) in enumerate(zip(results.keys, rows_of)):
        name, dashes = text.name(results, key), " ".join(map(str, looks["dashes"][i]))
        line = (
            f'<svg class="key" width="34" height="12" aria-hidden="true"><path d="M1 6H33" '
            f'stroke="{looks["colours"][i]}" stroke-width="3" stroke-dasharray="{dashes}"/></svg>'
        )
        box = (
            f'<input type="checkbox" class="shown" id="shown-{number}-{i}" value="{escape(name)}" checked '
            f'aria-label="show {escape(name)}">'
        )
        label = f'<label for="shown-{number}-{i}">{line} {escape(name)}</label>'
        others = "".join(f"<td>{escape(cells[name])}</td>" for name in columns)
        body.append(f"<tr><td>{box}</td><th scope='row'>{label}</th>{others}</tr>")
    titles = "".join(f"<th scope='col'>{escape(title)}</th>" for title in ("show", "method", *columns))
    table = f"<thead><tr>{titles}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f'<div class="scroll"><table class="methods">{table}</table></div>'


def _method_cells(results: Results, row: Row) -> dict[str, str]:
    cells = summary_cells(results, row)
    return {
        "removed": cells["removed"],
        f"validation {results.metric}": cells["validation"],
        "test": _tested(results, row) if row["removed"] else "",
        "change on test": tested_change(results, row) if row["removed"] else "",
        "parameters": _share(row, "parameters"),
        "MACs": _share(row, "macs"),
        "size": _share(row, "megabytes"),
    }


def _share(row: Row, name: str) -> str:
    before, after = row[f"{name} before"], row[f"{name} after"]
    if not before or after in (None, before):
        return ""
    return f"{100 * (after / before - 1):+.0f} %".replace("-", text.MINUS)


def _tested(results: Results, row: Row) -> str:
    shown = [row.get(name) for name in ("test before", "test after")]
    return text.arrow(*(text.value(results.metric, value, unit=False) for value in shown))


def level_rows(results: Results, rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return every level of every method as text."""
    out = []
    for row in rows:
        ends = (text.value(row["metric"], row[f"value {end}"], unit=False) for end in ("low", "high"))
        trials = [row["lowest trial"], row["highest trial"]]
        out.append(
            {
                "method": row["method"],
                "phase": row["phase"] if len(results.phases) > 1 else "",
                "removed": text.level(results, row["removed"]) + text.of_units(results),
                results.metric: text.value(row["metric"], row["value"]) + text.interval(*ends),
                "trials": _between(results, trials),
                "parameters": "" if row["parameters"] is None else f"{row['parameters']:,}",
                "MACs": "" if row["macs"] is None else f"{row['macs']:,}",
                "ms": "" if row["latency"] is None else f"{1e3 * row['latency']:.2f}",
            }
        )
    return out
