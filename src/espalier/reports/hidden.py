"""Sentences on what a table of chosen points hides: which method is better elsewhere, and where."""

from __future__ import annotations

from ..analysis.bootstrap import Bootstrap
from ..analysis.curves import ROUNDING, levels_above, shared_levels
from ..analysis.pairs import Row, compare_areas, compare_levels
from ..analysis.results import Key, Results
from ..analysis.summary import Boots, fraction_of
from . import text


def hidden(results: Results, tolerance: float, boots: Boots, point: float | None = None) -> list[str]:
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


def _about_point(results: Results, lead: Key, point: float, tolerance: float) -> list[str]:
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
        if before[low] < curve.at(point) - tolerance:
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
    results: Results, lead: Key, rival: Key, tolerance: float, point: float | None, boot: Bootstrap | None
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
    return [
        f"{text.name(results, lead)} is worse than every one of the {len(trials.trials)} trials of "
        f"{rival[0]} at {len(below)} of {len(shared)} levels ({text.ranges(results, below, shared)})."
    ]


def _against(results: Results, row: Row) -> str:
    """Return two values and the interval of their difference."""
    shown = " against ".join(text.value(results.metric, row[f"value of {x}"]) for x in "ab")
    if row["low"] is None:
        return shown
    low, high = (text.difference(results.metric, row[end]) for end in ("low", "high"))
    unsure = ", so the two are not distinguishable" if row["low"] <= 0 <= row["high"] else ""
    return f"{shown}; 95 % interval of the difference {low} to {high}{unsure}"
