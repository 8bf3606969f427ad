"""Results as rows of numbers: measurements, levels, one row per curve, pairs, points picked by hand.

Differences and changes are of scores: + is better for every metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.errors import InvalidValueError, UnknownNameError
from .bootstrap import Bootstrap, Interval, bootstraps
from .curves import BASE, ONE_SHOT, RECOVERED, ROUNDING, Curve, Tolerance, levels_above, shared_levels
from .results import BASE_KEY, Cost, Key, Results

Row = dict[str, Any]
Boots = Mapping[str, Bootstrap]
SCORING = ("static", "greedy")  # words of a label that change when a method scores, not what
STRETCHES = (1, 2, 5)  # hundredths below the base


def measurements(results: Results) -> Iterator[Row]:
    """Yield one row for each curve, trial, level and split."""
    measured: list[tuple[Key, str, int, float, float]] = []
    for key in results.keys:
        curve = results.curves[key]
        for trial, scores in enumerate(curve.trials or [curve.values]):
            measured += [(key, "validation", trial, *level) for level in zip(curve.removed, scores)]
    for key, levels in results.test.items():
        for removed, tested in levels.items():
            measured += [(key, "test", trial, removed, score) for trial, score in enumerate(tested)]
    for key, split, trial, removed, score in measured:
        cost, order, k = results.cost(key, removed), results.orders.get(key[0], []), results.count(removed)
        random = key in results.curves and bool(results.curves[key].trials)
        last = order[k - 1] if not random and 0 < k <= len(order) else (None, None)
        yield {
            **_about(results, key, removed),
            "trial": trial if random else None,
            "split": split,
            "value": results.show(score),
            **{name: getattr(cost, name) for name in ("parameters", "macs", "zeros")},
            **(dict(zip(("layer", "unit"), last)) if split == "validation" else {}),
        }


def _about(results: Results, key: Key, removed: float) -> Row:
    k = results.count(removed) if results.counted else None
    return {
        "model": results.model,
        "method": key[0],
        "phase": key[1],
        "metric": results.metric,
        "removed": removed,
        "removed units": k,
        "kept units": None if k is None else results.units - k,
    }


def by_level(results: Results, boots: Boots) -> Iterator[Row]:
    """Yield one row for each curve and level, and for the unpruned model: value, change, intervals, cost."""
    boot = boots.get("validation")
    bases = {key: curve for key, curve in results.curves.items() if key[0] == BASE}
    bases = bases or {BASE_KEY: Curve((0.0,), (results.base,))}
    for key, curve in {**bases, **{key: results.curves[key] for key in results.keys}}.items():
        trials = results.curves.get((results.random or "", key[1]))
        for i, (removed, score) in enumerate(zip(curve.removed, curve.values)):
            if not removed and key not in bases:
                continue
            cost, column = results.cost(key, removed), [row[i] for row in curve.trials]
            yield {
                **_about(results, key, removed),
                "value": results.show(score),
                **_shown_ends(results, "value", boot.score(key, removed) if boot else None),
                "lowest trial": results.show(min(column)) if column else None,
                "highest trial": results.show(max(column)) if column else None,
                "trials below": None if column else _fraction_below(trials, removed, score),
                "change": score - results.base,
                **_ends("change", boot.change(key, removed) if boot else None),
                "collapsed": None if results.majority is None else score <= results.majority + ROUNDING,
                **{name.replace("_", " "): number for name, number in vars(cost).items()},
                **_compression(results, cost),
                **results.details.get(key, {}).get(removed, {}),
            }


def _compression(results: Results, cost: Cost) -> Row:
    smaller = cost.compression(results.cost(BASE_KEY, 0.0))
    return {f"compression of {name}": ratio for name, ratio in smaller.items()}


def _fraction_below(trials: Curve | None, removed: float, score: float) -> float | None:
    """Return the fraction of random trials that the score is above; a tie hidden by rounding is a tie."""
    if trials is None or (at := trials.find(removed)) is None:
        return None
    return sum(score > row[at] + ROUNDING for row in trials.trials) / len(trials.trials)


def summarize(results: Results, tolerance: Tolerance, boots: Boots) -> list[Row]:
    """Return one row per curve: the point chosen by the tolerance, what it costs, and the whole curve."""
    return [_summarize(results, key, results.chosen(*key, tolerance), boots) for key in results.keys]


def _summarize(results: Results, key: Key, removed: float, boots: Boots) -> Row:
    valid, curve = boots.get("validation"), results.curves[key]
    before, after = results.cost(key, 0.0), results.cost(key, removed)
    return {
        **_about(results, key, removed),
        "units": results.units,
        "measured to": curve.removed[-1],
        "base": results.show(curve.base),
        "validation": results.show(curve.at(removed)),
        **_shown_ends(results, "validation", valid.score(key, removed) if valid else None),
        **_tested(results, key, removed, boots.get("test")),
        "parameters before": before.parameters,
        "parameters after": after.parameters,
        "megabytes before": before.dense_megabytes,
        "megabytes after": after.megabytes,
        "macs before": before.macs,
        "macs after": after.macs,
        **_compression(results, after),
        "collapse": curve.collapse(results.majority),
        "area": results.show(curve.area()),
        **_shown_ends(results, "area", valid.area(key) if valid else None),
        **{f"removed within {p}": curve.within(p / 100) for p in STRETCHES},
        "scoring seconds": results.seconds.get(key[0]) if key[1] == ONE_SHOT else None,
        **_over_trials(results, curve, removed),
        **_against_random(results, key, valid),
    }


def _tested(results: Results, key: Key, removed: float, boot: Bootstrap | None) -> Row:
    """Return test values; they exist only where the experiment chose the same point."""
    base = results.test.get(BASE_KEY, {}).get(0.0)
    key = key if removed else BASE_KEY
    scores = results.test.get(key, {}).get(removed)
    before = {"test before": results.show(base[0])} if base else {}
    if not base or not scores:
        return before
    after = float(np.mean(scores))
    return {
        **before,
        "test after": results.show(after),
        **_shown_ends(results, "test after", boot.score(key, removed) if boot else None),
        "test change": after - base[0],
        **_ends("test change", boot.change(key, removed) if boot else None),
    }


def _over_trials(results: Results, curve: Curve, removed: float) -> Row:
    if not curve.trials:
        return {}
    areas = [curve.trial(i).area() for i in range(len(curve.trials))]
    found = {
        "validation lowest": curve.lowest().at(removed),
        "validation highest": curve.highest().at(removed),
    }
    found |= {"area lowest": min(areas), "area highest": max(areas)}
    return {"trials": len(curve.trials), **{name: results.show(score) for name, score in found.items()}}


def _against_random(results: Results, key: Key, boot: Bootstrap | None) -> Row:
    curve, random = results.curves[key], (results.random or "", key[1])
    if random not in results.curves or curve.trials:
        return {}
    trials, area = results.curves[random], compare_areas(results, key, random, boot)
    return {
        "area over random": area["difference"],
        **{f"area over random {end}": area[end] for end in ("low", "high")},
        "levels shared": area["levels"],
        "levels above random mean": area["levels a above"],
        "levels below random mean": area["levels b above"],
        "levels above all trials": len(levels_above(curve, trials.highest())),
        "levels below all trials": len(levels_above(trials.lowest(), curve)),
    }


def pairs(results: Results, boots: Boots) -> Iterator[Row]:
    """Yield, for each pair of curves, a row for the area (`removed` is None) and one for each level."""
    boot = boots.get("validation")
    for a, b in list_pairs(results):
        yield compare_areas(results, a, b, boot)
        yield from compare_levels(results, a, b, boot)


def list_pairs(results: Results) -> list[tuple[Key, Key]]:
    """List pairs to compare: phases, scored once or again, against random, the first against the others."""
    keys, lead = results.keys, results.lead
    single = [key for key in keys if not results.curves[key].trials]
    phases = [((method, RECOVERED), (method, ONE_SHOT)) for method in results.methods]
    again = [
        (other, key)
        for key in single
        for other in single
        if key[1] == other[1] and _words(key[0], SCORING) == _words(other[0]) != _words(key[0])
    ]
    random = [(a, b) for a in single for b in keys if results.curves[b].trials and a[1] == b[1]]
    # the first method in the same phase; without one, after recovery
    leads = {phase: phase if (lead, phase) in keys else RECOVERED for _, phase in single}
    firsts = [((str(lead), leads[phase]), (method, phase)) for method, phase in single if method != lead]
    ordered = [*phases, *again, *random, *firsts]
    known = {frozenset(pair): pair for pair in reversed(ordered) if set(pair) <= set(keys)}
    return sorted(known.values(), key=ordered.index)


def _words(label: str, without: Iterable[str] = ()) -> tuple[str, ...]:
    return tuple(word for word in label.split(":") if word not in without)


def compare_areas(results: Results, a: Key, b: Key, boot: Bootstrap | None) -> Row:
    """Return `a` minus `b` in area over the shared levels: other levels would be joined by other lines."""
    one, two = results.curves[a], results.curves[b]
    levels = (0.0, *shared_levels(one, two))
    found = boot.area_difference(a, b, levels) if boot else None
    return {
        **_difference(results, a, b, None, (one.area(levels), two.area(levels)), found),
        "levels": len(levels) - 1,
        "levels a above": len(levels_above(one, two)),
        "levels b above": len(levels_above(two, one)),
    }


def compare_levels(results: Results, a: Key, b: Key, boot: Bootstrap | None) -> Iterator[Row]:
    """Yield `a` minus `b` at each shared level."""
    one, two = results.curves[a], results.curves[b]
    for removed in shared_levels(one, two):
        found = boot.difference(a, b, removed) if boot else None
        yield _difference(results, a, b, removed, (one.at(removed), two.at(removed)), found)


def _difference(
    results: Results, a: Key, b: Key, removed: float | None, scores: Sequence[float], found: Interval | None
) -> Row:
    verdict = "no interval"
    if found:
        verdict = "a better" if found.low > 0 else "b better" if found.high < 0 else "not distinguishable"
    return {
        "model": results.model,
        "a": a[0],
        "phase of a": a[1],
        "b": b[0],
        "phase of b": b[1],
        "removed": removed,
        "value of a": results.show(scores[0]),
        "value of b": results.show(scores[1]),
        "difference": scores[0] - scores[1],
        **dict(zip(("low", "high"), found or (None, None))),
        "verdict": verdict,
    }


def at_points(results: Sequence[Results], points: Mapping[str, float], tolerance: Tolerance) -> Iterator[Row]:
    """Yield the first method at points picked by hand, as a row of the summary, with what the rule removes.

    A point is a fraction removed; an int counts units.
    """
    known = {one.model: one for one in results}
    for model, point in points.items():
        if model not in known:
            raise UnknownNameError("model", model, known, parameter="points")
        one = known[model]
        key = next((key for key in one.keys if key[0] == one.lead), None)
        if key is None:
            raise InvalidValueError(f"{model} has random trials only: there is no solution to show", "points")
        row = _summarize(one, key, fraction_of(one, point), bootstraps(one))
        relative = row["validation"] / row["base"] - 1 if row["base"] else None
        yield {**row, "relative change": relative, "rule removes": one.chosen(*key, tolerance)}


def fraction_of(results: Results, point: float) -> float:
    """Return the fraction that a point stands for: an int counts units."""
    return point / results.units if isinstance(point, int) else point


def _shown_ends(results: Results, name: str, found: Interval | None) -> Row:
    """Return the ends of an interval as values of the metric; where lower is better they change places."""
    ends = sorted(results.show(score) for score in found) if found else (None, None)
    return dict(zip((f"{name} low", f"{name} high"), ends))


def _ends(name: str, found: Interval | None) -> Row:
    return dict(zip((f"{name} low", f"{name} high"), found or (None, None)))
