"""What a table of chosen solutions hides, in sentences that are computed: who else is above, and where."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.curves import ROUNDING, Curve
from ..analysis.results import Results
from ..analysis.summary import Boots, compared, levels_above, shared
from . import words


def hidden(
    results: Results, within: float = 0.01, point: int | None = None, boots: Boots | None = None
) -> list[str]:
    """Plain sentences about one model; none where the leading strategy is ahead in everything looked at."""
    if results.lead is None:
        return []
    curve = results.curves[results.lead]
    lines = [] if point is None else _about_point(results, curve, point, within)
    for rival in results.labels:
        if rival != results.lead:
            lines += _about_rival(results, rival, within, point, boots or {})
    lines += _about_trials(results, curve)
    return [f"{results.model}: {line}" for line in lines]


def _about_point(results: Results, curve: Curve, point: int, within: float) -> list[str]:
    """What lies on the way to a point picked by hand, and who keeps the same units there."""
    lines, chosen = [], curve.unbroken(within)
    if point > chosen:
        fell = next(k for k in curve.removed if k > chosen)
        lines.append(
            f"the point {point} lies beyond the {chosen} that the rule allows: at {fell} {results.lead} "
            f"is more than {words.within(within, results.metric)} worse than the unpruned model."
        )
        way = {k: v for k, v in zip(curve.removed, curve.accuracy) if k < point}
        low = min(way, key=lambda k: way[k])
        if way[low] < curve.at(point) - within:
            lines.append(
                f"{results.lead} goes to {_said(results, way[low])} at {low} before it comes back to "
                f"{_said(results, curve.at(point))} at {point}."
            )
    mine = set(results.orders.get(results.lead or "", ())[:point])
    for other, order in results.orders.items():
        if other != results.lead and len(mine) == point and set(order[:point]) == mine:
            lines.append(
                f"at {point} removed, {other} has removed the very same {results.target} as {results.lead}."
            )
    return lines


def _about_rival(results: Results, rival: str, within: float, point: int | None, boots: Boots) -> list[str]:
    lead = str(results.lead)
    mine, other = results.curve(lead), results.curve(rival)
    name = f"the mean of {rival}" if rival in results.trials else rival
    found = compared(results, rival, lead, boots.get("validation"))
    said, higher = [], words.better(results.metric)
    if found["difference"] > ROUNDING:
        a, b = (words.value(results.metric, found[f"area {x}"]) for x in "ab")
        sure = _sure(results, found["low"], found["high"])
        said.append(f"is {higher} on average over the curve ({a} against {b}{sure})")
    for k in sorted({mine.unbroken(within), *([] if point is None else [point])}):
        if k in other.removed and k in mine.removed and other.at(k) > mine.at(k) + ROUNDING:
            here, there = _said(results, other.at(k)), _said(results, mine.at(k))
            level = compared(results, rival, lead, boots.get("validation"), k)
            ends = (level[f"difference there {end}"] for end in ("low", "high"))
            said.append(f"is {higher} at {k} removed ({here} against {there}{_sure(results, *ends)})")
    longer = other.unbroken(within)
    if longer > mine.unbroken(within):
        least = "at least " if longer == other.removed[-1] < results.units else ""
        said.append(f"can lose {least}{longer} by the rule where {lead} can lose {mine.unbroken(within)}")
    if not said:
        return []
    above, levels = levels_above(other, mine), shared(other, mine)
    where = f" ({words.runs(above, levels)})" if above and len(above) < len(levels) else ""
    said.append(f"is {higher} than {lead} at {len(above)} of {len(levels)} levels{where}")
    return [f"{name} {_listed(said)}."]


def _about_trials(results: Results, curve: Curve) -> list[str]:
    lines = []
    for label, trials in results.trials.items():
        below, levels = levels_above(trials.lowest(), curve), shared(trials.lowest(), curve)
        if below:
            lines.append(
                f"{results.lead} is {words.worse(results.metric)} than every one of the "
                f"{len(trials.accuracy)} trials of {label} at {len(below)} of {len(levels)} levels "
                f"({words.runs(below, levels)})."
            )
    return lines


def _sure(results: Results, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    ends = [words.difference(results.metric, end) for end in (low, high)]
    told = f"; 95 % interval of the difference {ends[0]} to {ends[1]}"
    return told + (", so they are not told apart" if low <= 0 <= high else "")


def _said(results: Results, held: float) -> str:
    return words.value(results.metric, results.show(held))


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
