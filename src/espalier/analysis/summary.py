"""What the curves say, as rows: one for each strategy, each level, each pair, each point picked by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.errors import EspalierError, suggest
from .bootstrap import Bootstrap, Interval, bootstraps
from .curves import ROUNDING, Curve, Trials
from .results import Results

Row = dict[str, Any]
Boots = Mapping[str, Bootstrap]
POINTS = (1, 2, 5)  # of a hundred: how far below the base a stretch may go
PICKERS = ("static", "greedy")  # words that change when a strategy scores, not what

# the columns of rows that a strategy may have nothing to say in
TESTED = (
    *("test before", "test after", "test after low", "test after high"),
    *("test change", "test change low", "test change high"),
)
OVER_TRIALS = (
    *("trials", "validation lowest", "validation highest"),
    *("area lowest", "area highest"),
)
AGAINST = (
    *("area over random", "area over random low", "area over random high"),
    *("levels shared", "levels above random mean", "levels below random mean"),
    *("levels above all trials", "levels below all trials"),
)


def summary(results: Results, within: float = 0.01, boots: Boots | None = None) -> list[Row]:
    """One row for each strategy: the point the rule chooses, what it costs and keeps, and the whole curve."""
    if boots is None:
        boots = bootstraps(results)
    return [_summarised(results, label, within, boots) for label in results.labels]


def _summarised(results: Results, label: str, within: float, boots: Boots) -> Row:
    curve, k = results.curve(label), results.chosen(label, within)
    valid, test = boots.get("validation"), boots.get("test")
    before, after = results.cost(label, 0), results.cost(label, k)
    row: Row = {
        "model": results.model,
        "strategy": label,
        "metric": results.metric,
        "units": results.units,
        "measured to": curve.removed[-1],
        "base": results.show(curve.base),
        "chosen": k,
        "kept": results.units - k,
        "validation": results.show(curve.at(k)),
        **_span("validation", results, valid.at(label, k) if valid else None),
        **_tested(results, label, k, test),
        "parameters before": before.parameters,
        "parameters after": after.parameters,
        "megabytes before": before.megabytes,
        "megabytes after": after.megabytes,
        "macs before": before.macs,
        "macs after": after.macs,
        "area": results.show(curve.area()),
        **_span("area", results, valid.area(label) if valid else None),
        **{f"unbroken {p}": curve.unbroken(p / 100) for p in POINTS},
        "scoring seconds": results.seconds.get(label),
        **_over_trials(results, label, k),
    }
    return {**row, **_against_random(results, label, valid)}


def _tested(results: Results, label: str, k: int, boot: Bootstrap | None) -> Row:
    """On the test part, measured only where the experiment chose the same point."""
    values = results.test.get(label, {}).get(k)
    base = results.test.get("base", {}).get(0)
    if not k and base:
        values = base
    if not values or not base:
        return dict.fromkeys(TESTED)
    after = float(np.mean(values))
    name = label if k else "base"
    return {
        "test before": results.show(base[0]),
        "test after": results.show(after),
        **_span("test after", results, boot.at(name, k) if boot else None),
        "test change": after - base[0],
        **_plain_span("test change", boot.change(name, k) if boot else None),
    }


def _over_trials(results: Results, label: str, k: int) -> Row:
    if label not in results.trials:
        return dict.fromkeys(OVER_TRIALS)
    trials = results.trials[label]
    ends = [trials.lowest().at(k), trials.highest().at(k)]
    areas = [curve.area() for curve in trials.curves]
    shown = [results.show(v) for v in (*ends, min(areas), max(areas))]
    return dict(zip(OVER_TRIALS, (len(trials.accuracy), *shown)))


def _against_random(results: Results, label: str, boot: Bootstrap | None) -> Row:
    if results.random is None or label in results.trials:
        return dict.fromkeys(AGAINST)
    curve, trials = results.curves[label], results.trials[results.random]
    where = {name: levels_above(curve, other) for name, other in _bounds(results).items()}
    under = {name: levels_above(other, curve) for name, other in _bounds(results).items()}
    found = compared(results, label, results.random, boot)
    return {
        "area over random": found["difference"],
        "area over random low": found["low"],
        "area over random high": found["high"],
        "levels shared": len(shared(curve, trials.mean())),
        "levels above random mean": len(where["mean"]),
        "levels below random mean": len(under["mean"]),
        "levels above all trials": len(where["highest"]),
        "levels below all trials": len(under["lowest"]),
    }


def _bounds(results: Results) -> dict[str, Curve]:
    trials = results.trials[results.random or ""]
    return {"mean": trials.mean(), "lowest": trials.lowest(), "highest": trials.highest()}


def by_level(results: Results) -> list[Row]:
    """One row for each level of the random trials: every strategy, and the part of the trials below it."""
    columns: dict[str, dict[int, float]] = {
        label: _shown(results, curve) for label, curve in results.curves.items()
    }
    for label, trials in results.trials.items():
        bounds = {"mean": trials.mean(), "lowest": trials.lowest(), "highest": trials.highest()}
        columns |= {f"{label} {name}": _shown(results, c) for name, c in bounds.items()}
        for name, curve in results.curves.items():
            columns[f"part of {label} below {name}"] = _beaten(trials, curve)
    lead = results.random or results.lead
    return [
        {"model": results.model, "removed": k, **{name: c.get(k) for name, c in columns.items()}}
        for k in (results.curve(lead).removed if lead else ())
    ]


def _beaten(trials: Trials, curve: Curve) -> dict[int, float]:
    """The part of the trials that the curve is above at each level; a tie that rounding hides is a tie."""
    mine = dict(zip(curve.removed, curve.accuracy))
    return {
        k: sum(mine[k] > value + ROUNDING for value in column) / len(column)
        for k, column in zip(trials.removed, zip(*trials.accuracy))
        if k in mine
    }


def _shown(results: Results, curve: Curve) -> dict[int, float]:
    return {k: results.show(value) for k, value in zip(curve.removed, curve.accuracy)}


def comparisons(results: Results, within: float = 0.01, boots: Boots | None = None) -> list[Row]:
    """The pairs that matter: scored once or again, against random, and against the leading strategy."""
    if boots is None:
        boots = bootstraps(results)
    again = [
        (other, label)
        for label in results.curves
        for other in results.curves
        if _words(label, PICKERS) == _words(other) != _words(label)
    ]
    random = [(label, trials) for label in results.curves for trials in results.trials]
    rivals = [(str(results.lead), other) for other in results.curves if other != results.lead]
    pairs = {frozenset(pair): pair for pair in (*rivals, *random, *again)}
    rows = []
    for a, b in sorted(pairs.values(), key=[*again, *random, *rivals].index):
        chosen = results.chosen(a, within)
        near = [k for k in shared(results.curve(a), results.curve(b)) if k <= chosen]
        rows.append(compared(results, a, b, boots.get("validation"), max(near, default=None)))
    return rows


def _words(label: str, without: Iterable[str] = ()) -> tuple[str, ...]:
    return tuple(word for word in label.split(":") if word not in without)


def compared(results: Results, a: str, b: str, boot: Bootstrap | None, removed: int | None = None) -> Row:
    """`a` less `b`: in area over the levels both were measured at, and at one level of both."""
    one, two = results.curve(a), results.curve(b)
    grid = (
        0,
        *shared(one, two),
    )  # a coarse curve beside a fine one would be measured by other lines
    areas = [Curve(grid, tuple(c.at(k) for k in grid)).area() for c in (one, two)]
    found = boot.difference(a, b, grid) if boot else None
    row: Row = {
        "model": results.model,
        "a": a,
        "b": b,
        "area a": results.show(areas[0]),
        "area b": results.show(areas[1]),
        "difference": areas[0] - areas[1],
        "low": found.low if found else None,
        "high": found.high if found else None,
        "levels": len(shared(one, two)),
        "levels a above": len(levels_above(one, two)),
        "levels b above": len(levels_above(two, one)),
        "verdict": verdict(found),
    }
    here = boot.difference_at(a, b, removed) if boot and removed is not None else None
    row["at"] = removed
    row["difference there"] = None if removed is None else one.at(removed) - two.at(removed)
    return {**row, **_plain_span("difference there", here)}


def verdict(found: Interval | None) -> str:
    if found is None:
        return "no interval"
    return "a better" if found.low > 0 else "b better" if found.high < 0 else "not told apart"


def at_points(results: Sequence[Results], points: Mapping[str, int], within: float = 0.01) -> list[Row]:
    """The solutions picked by hand, and beside each the one that the rule would have chosen."""
    known = {r.model: r for r in results}
    rows = []
    for model, k in points.items():
        if model not in known:
            raise EspalierError(
                f"no results of a model {model!r}{suggest(model, known)} There are: {', '.join(known)}"
            )
        r = known[model]
        if r.lead is None:
            raise EspalierError(f"{model} has random trials only: there is no solution to look at")
        curve, chosen = r.curves[r.lead], r.chosen(r.lead, within)
        if k not in curve.removed:
            near = min(curve.removed, key=lambda level: abs(level - k))
            raise EspalierError(
                f"{model}: {r.lead} was not measured at {k} of {r.units} removed; the nearest is {near}"
            )
        before, after, rule = (r.cost(r.lead, n) for n in (0, k, chosen))
        rows.append(
            {
                "model": model,
                "strategy": r.lead,
                "removed": k,
                "kept": r.units - k,
                "metric": r.metric,
                "before": r.show(curve.base),
                "after": r.show(curve.at(k)),
                "relative change": _relative(r.show(curve.base), r.show(curve.at(k))),
                "megabytes before": before.megabytes,
                "megabytes after": after.megabytes,
                "parameters before": before.parameters,
                "parameters after": after.parameters,
                "measured to": curve.removed[-1],
                "rule removes": chosen,
                "rule after": r.show(curve.at(chosen)),
                "rule megabytes": rule.megabytes,
            }
        )
    return rows


def _relative(before: float, after: float) -> float | None:
    return after / before - 1 if before else None


def shared(a: Curve, b: Curve) -> list[int]:
    """The levels both were measured at; the unpruned model is the same for both and does not count."""
    return sorted((set(a.removed) & set(b.removed)) - {0})


def levels_above(a: Curve, b: Curve) -> list[int]:
    """The shared levels at which `a` is above `b`."""
    one, two = (dict(zip(c.removed, c.accuracy)) for c in (a, b))
    return [k for k in shared(a, b) if one[k] > two[k] + ROUNDING]


def _span(name: str, results: Results, found: Interval | None) -> Row:
    """An interval in the numbers a reader expects; a perplexity turns it round."""
    if found is None:
        return {f"{name} low": None, f"{name} high": None}
    low, high = sorted(results.show(value) for value in found)
    return {f"{name} low": low, f"{name} high": high}


def _plain_span(name: str, found: Interval | None) -> Row:
    return {
        f"{name} low": found.low if found else None,
        f"{name} high": found.high if found else None,
    }
