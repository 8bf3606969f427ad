"""Sentences under tables: which data, rule and levels; what a table of chosen points hides, and where."""

from __future__ import annotations

from itertools import pairwise

from ..analysis.bootstrap import Bootstrap
from ..analysis.curves import (
    BASE,
    GRADUAL,
    ONE_SHOT,
    RECOVERED,
    ROUNDING,
    Curve,
    Tolerance,
    levels_above,
    shared_levels,
)
from ..analysis.results import Key, Results
from ..analysis.summary import Boots, Row, compare_areas, compare_levels, fraction_of
from . import text


def describe(results: Results, tolerance: Tolerance) -> str:
    """Return the caption of a model's tables."""
    base = text.value(results.metric, results.show(results.base))
    near = text.describe_tolerance(tolerance, results.metric)
    collapse, weak, majority = "", "", results.majority
    if majority is not None:
        share = text.value(results.metric, majority)
        collapse = f"collapse: the first level that is not above the most frequent class, {share}"
        if results.base <= majority:
            weak = "the unpruned model is not above it either, so no rule means anything"
    random = sum(bool(results.curves[key].trials) for key in results.keys)
    parts = [
        f"{results.model}: {text.label(results.metric)} {base} unpruned, {text.units(results)}",
        describe_data(results),
        _describe_training(results),
        f"removed: the longest unbroken stretch within {near} of the unpruned model on validation data",
        _describe_ends(results),
        *describe_levels(results),
        collapse,
        weak,
        f"random: {results.random}, which has the most trials" if random > 1 else "",
        "in parentheses: lowest–highest trial" if random else "",
        "in brackets: 95 % intervals over examples by a paired bootstrap; of values of few examples, Wilson's"
        if results.predictions
        else "no intervals: no predictions were kept",
        text.describe_differences(results.metric),
    ]
    return "; ".join(filter(None, parts))


def describe_data(results: Results) -> str:
    """Return the data: sst2, 872 validation examples, 800 for test, scores of 128."""
    test, scored = (results.examples.get(split) for split in ("test", "calibration"))
    parts = [
        text.examples(results).replace(" ", " validation ", 1),
        f"{test} for test" if test else "",
        f"scores from {scored}" if scored else "",
    ]
    return ", ".join(filter(None, [results.task, *parts])) if results.task else ""


def describe_panel(results: Results) -> str:
    """Return the data in the few words that fit above a panel."""
    curves = {key: results.curves[key] for key in results.keys if results.steps.get(key[0]) != "auto"}
    every = max((_gap(results, curve) for curve in curves.values() if not curve.trials), default=1)
    parts = [
        f"{results.task}, validation" if results.task else "",
        text.examples(results),
        f"every {every} {results.target}" if every > 1 and results.counted else "",
    ]
    return ", ".join(filter(None, parts))


def describe_levels(results: Results) -> list[str]:
    """Return after how many units each method was measured and scored again, where not after every one."""
    keys = [key for key in results.keys if key[1] == ONE_SHOT and results.counted]
    groups: dict[str, list[str]] = {}
    for method, phase in keys:
        curve, step = results.curves[method, phase], results.steps.get(method)
        every = _gap(results, curve)
        how = [f"measured after every {every} {results.target}"] if every > 1 else []
        how += [f"scored again after every {step}"] if step else []
        if step == "auto":
            how = [f"scored and measured {len(curve.removed) - 1} times, at steps that it chose"]
        groups.setdefault(", ".join(how), []).append(method)
    named = {how: f"{', '.join(m)} " if len(m) < len(keys) else "" for how, m in groups.items() if how}
    out = [f"{methods}{how}" for how, methods in named.items()]
    return [*out, "fewer levels can make a stretch longer"] if out and len(groups) > 1 else out


def _gap(results: Results, curve: Curve) -> int:
    """Return the usual distance of two levels in units; the last may be shorter."""
    return max((results.count(b) - results.count(a) for a, b in pairwise(curve.removed)), default=1)


def _describe_ends(results: Results) -> str:
    """Return where the curves end, if not with everything removed."""
    ends = {text.name(results, key): results.curves[key].removed[-1] for key in results.keys}
    short = {name: end for name, end in ends.items() if end < 1}
    if not short:
        return ""
    last = max(ends.values())
    others = [f"{name} to {text.level(results, end)}" for name, end in short.items() if end < last]
    where = f"measured to {text.level(results, last)}{text.of_units(results)}"
    where += f", but {', '.join(others)}" if others else ""
    return f"{where} (≥: the stretch reaches that end), area over the measured part"


def _describe_training(results: Results) -> str:
    """Return how the recovered and gradual models were trained."""
    trained = results.curves.get((BASE, RECOVERED))
    if not results.training or trained is None:
        return ""
    how = results.training
    recovered = (
        f"recovered: {how['epochs']} epochs of {how['examples'] or 'all'} training examples under the mask, "
        f"lr {how['lr']:g}; the unpruned model after the same training: "
        f"{text.value(results.metric, results.show(trained.base))}"
    )
    gradual = [results.details.get(key, {}) for key in results.keys if key[1] == GRADUAL]
    found = [(one.get("schedule"), one.get("mask_interval")) for levels in gradual for one in levels.values()]
    shown = [
        f"{schedule or 'unknown'} schedule" + (f", a mask every {interval} steps" if interval else "")
        for schedule, interval in dict.fromkeys(found)
    ]
    return recovered + (f"; gradual: pruned during a training as long, {' or '.join(shown)}" if shown else "")


def hidden(results: Results, tolerance: Tolerance, boots: Boots, point: float | None = None) -> list[str]:
    """Return sentences about one model; none where the first method is ahead in everything compared."""
    lines = []
    for lead in [key for key in results.keys if key[0] == results.lead]:
        at = None if point is None else fraction_of(results, point)
        lines += [] if at is None else _about_point(results, lead, at, tolerance)
        rivals = [key for key in results.keys if key != lead and key[1] == lead[1]]
        for rival in rivals:
            lines += _about_rival(results, lead, rival, tolerance, at, boots.get("validation"))
        for rival in rivals:
            lines += _about_trials(results, lead, rival)
    return [f"{results.model}: {line}" for line in lines]


def at_chance(results: Results, tolerance: Tolerance) -> list[str]:
    """Return a sentence about each method whose chosen model only predicts the most frequent class."""
    chosen = {key: results.curves[key].within(tolerance) for key in results.keys}
    low = [
        f"{text.name(results, key)} at {text.level(results, x)} removed"
        for key, x in chosen.items()
        if results.majority is not None and x and results.curves[key].at(x) <= results.majority + ROUNDING
    ]
    about = "within the tolerance, but no better than always predicting the most frequent class"
    return [f"{results.model}: {', '.join(low)}: {about}."] if low else []


def _about_point(results: Results, lead: Key, point: float, tolerance: Tolerance) -> list[str]:
    """Describe what lies before a point picked by hand, and which methods remove the same units there."""
    lines, curve, name = [], results.curves[lead], text.name(results, lead)
    chosen, at = curve.within(tolerance), text.level(results, point)
    if point > chosen:
        fell = next(x for x in curve.removed if x > chosen)
        near = text.describe_tolerance(tolerance, results.metric)
        lines.append(
            f"the point {at} lies beyond the {text.level(results, chosen)} that the rule allows: at "
            f"{text.level(results, fell)} {name} is more than {near} worse than the unpruned model."
        )
        before = {x: score for x, score in zip(curve.removed, curve.values) if x < point}
        low = min(before, key=lambda x: before[x])
        if before[low] < curve.at(point) - curve.allowed_drop(tolerance):
            values = [text.value(results.metric, results.show(curve.at(x))) for x in (low, point)]
            fall = f"{name} falls to {values[0]} at {text.level(results, low)}"
            lines.append(f"{fall} and returns to {values[1]} at {at}.")
    count = results.count(point)
    removed = set(results.orders.get(lead[0], ())[:count])
    for other, order in results.orders.items():
        if other != lead[0] and len(removed) == count and set(order[:count]) == removed:
            lines.append(f"at {at} removed, {other} has removed the same {results.target} as {name}.")
    return lines


def _about_rival(
    results: Results, lead: Key, rival: Key, tolerance: Tolerance, point: float | None, boot: Bootstrap | None
) -> list[str]:
    """Describe where another method is better: in area, at the chosen point, in what it can lose."""
    mine, other, name = results.curves[lead], results.curves[rival], text.name(results, lead)
    chosen, longer = mine.within(tolerance), other.within(tolerance)
    area, parts = compare_areas(results, rival, lead, boot), list[str]()
    if area["difference"] > ROUNDING:
        parts.append(f"is better on average over the curve ({_against(results, area)})")
    for row in compare_levels(results, rival, lead, boot):
        if row["removed"] in (chosen, point) and row["difference"] > ROUNDING:
            at = text.level(results, row["removed"])
            parts.append(f"is better at {at} removed ({_against(results, row)})")
    if longer > chosen:
        least = "at least " if longer == other.removed[-1] < 1 else ""
        lost = [text.level(results, x) for x in (longer, chosen)]
        parts.append(f"can lose {least}{lost[0]} by the rule where {name} can lose {lost[1]}")
    if not parts:
        return []
    above, shared = levels_above(other, mine), shared_levels(other, mine)
    where = f" ({text.ranges(results, above, shared)})" if above and len(above) < len(shared) else ""
    last = f"is better than {name} at {len(above)} of {len(shared)} levels{where}"
    mean = "the mean of " if other.trials else ""
    return [f"{mean}{text.name(results, rival)} {', '.join(parts)} and {last}."]


def _about_trials(results: Results, lead: Key, rival: Key) -> list[str]:
    """Describe where the first method is worse than every random trial."""
    curve, trials = results.curves[lead], results.curves[rival]
    below = levels_above(trials.lowest(), curve) if trials.trials else []
    if not below:
        return []
    shared = shared_levels(trials, curve)
    where = f"{len(below)} of {len(shared)} levels ({text.ranges(results, below, shared)})"
    every = f"every one of the {len(trials.trials)} trials of {rival[0]}"
    return [f"{text.name(results, lead)} is worse than {every} at {where}."]


def _against(results: Results, row: Row) -> str:
    """Return two values and the interval of their difference."""
    shown = " against ".join(text.value(results.metric, row[f"value of {x}"]) for x in "ab")
    if row["low"] is None:
        return shown
    low, high = (text.difference(results.metric, row[end]) for end in ("low", "high"))
    unsure = ", so the two are not distinguishable" if row["low"] <= 0 <= row["high"] else ""
    return f"{shown}; 95 % interval of the difference {low} to {high}{unsure}"
