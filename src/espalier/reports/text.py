"""Numbers as text: percent for shares, points for differences, brackets for intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..analysis.curves import ONE_SHOT, Tolerance
from ..analysis.results import Key, Results
from ..evaluation import metrics

MINUS = "−"


def label(metric: str) -> str:
    """Return the name of a metric as a title: Accuracy."""
    name = metrics.load(metric).label
    return name[:1].upper() + name[1:]


def is_lower_better(metric: str) -> bool:
    """Whether a smaller value of a metric is better."""
    return metrics.load(metric).lower_is_better


def value(metric: str, number: float | None, unit: bool = True) -> str:
    """Return a value of a metric: 90.08 % of an accuracy, 12.31 of a perplexity, 0.842 of a correlation."""
    if number is None:
        return ""
    known = metrics.load(metric)
    if known.share:
        return f"{100 * number:.2f}{' %' if unit else ''}"
    return (f"{number:.2f}" if known.lower_is_better else f"{number:.3f}").replace("-", MINUS)


def number(value: float | None, digits: int = 4, like: float | None = None) -> str:
    """Return a measured number with four digits after the point, fewer after 10, or that it is undefined.

    0.9008, 12.346, 29952: `digits` + 1 of them count. The ends of an interval are written `like` its value.
    """
    if value is None:
        return "undefined"
    size = abs(value if like is None else like)
    if not size < 1e9:  # nan too
        return f"{value:.{digits}g}"
    return f"{value:.{max(0, digits - int(math.log10(max(1.0, size))))}f}"


def measured_interval(found: Mapping[str, Any]) -> str:
    """Return `0.9008 [0.8810, 0.9190]` of a measured split."""
    value, low, high = (found[name] for name in (found["metric"], "low", "high"))
    ends = ("", "") if low is None else (number(low, like=value), number(high, like=value))
    return number(value) + interval(*ends)


def difference(metric: str, number: float | None) -> str:
    """Return a difference of scores with its sign; + is better for every metric."""
    if number is None:
        return ""
    known = metrics.load(metric)
    digits, shown = (2, 100 * number) if known.share or known.log else (3, number)
    return f"{round(shown, digits) + 0.0:+.{digits}f}".replace("-", MINUS)  # + 0.0: no minus zero


def change(
    metric: str,
    found: Sequence[float | None],
    n: int | None = None,
    show: Callable[[str, float | None], str] | None = None,
) -> str:
    """Return the change of a score, given with the ends of its interval: −2.50 [−7.50, +0.00].

    On a log scale it is that of the value, in percent, with the value's sign: a perplexity that rises has +.
    Where every draw of `n` paired examples is the same, a share may still change by 3/n (the rule of three);
    elsewhere an interval without a width is left out.
    """
    value, low, high = found
    known, written = metrics.load(metric), show or difference
    if value is None:
        return ""
    if low is not None and low == high:
        low, high = (-3 / n, 3 / n) if n and known.proportion and not value else (None, None)
    if not known.log:
        return written(metric, value) + interval(written(metric, low), written(metric, high))
    sign = -1 if known.lower_is_better else 1
    shown = [None if one is None else 100 * math.expm1(min(sign * one, 700.0)) for one in (value, low, high)]
    first, *ends = ("" if x is None else f"{round(x, 2) + 0.0:+.{2 if abs(x) < 1000 else 0}f}" for x in shown)
    return f"{first} %{interval(*ends[::sign])}".replace("-", MINUS)


def four_digits(metric: str, number: float | None) -> str:
    """Return a difference with four digits after the point, as the values beside it."""
    return "" if number is None else f"{round(number, 4) + 0.0:+.4f}".replace("-", MINUS)


def describe_differences(metric: str) -> str:
    """Return the unit and the sign of differences."""
    known = metrics.load(metric)
    if known.log:
        return f"differences: in hundredths of ln({metric}), + is better"
    return "differences: in points, + is better" if known.share else "differences: + is better"


def describe_tolerance(tolerance: Tolerance, metric: str) -> str:
    """Return a tolerance with its unit: 1 point, or 1 % of a perplexity."""
    if isinstance(tolerance, str):
        return tolerance.replace("%", " %")
    known = metrics.load(metric)
    if known.log:
        return f"{100 * tolerance:g} %"
    return f"{100 * tolerance:g} point{'' if tolerance == 0.01 else 's'}" if known.share else f"{tolerance:g}"


def interval(low: str, high: str) -> str:
    """Return an interval in brackets, or nothing."""
    return f" [{low}, {high}]" if low and high else ""


def percent_change(share: float | None) -> str:
    """Return a relative change with its sign: −4.30 %."""
    return "" if share is None else f"{100 * share:+.2f} %".replace("-", MINUS)


def times(ratio: float | None) -> str:
    """Return a ratio: 2.03×, or a dash where nothing is left to divide by."""
    return "—" if ratio is None else f"{ratio:.2f}×"


def arrow(before: str, after: str) -> str:
    """Return `before → after`, or nothing if one of them is empty."""
    return f"{before} → {after}" if before and after else ""


def level(results: Results, removed: float) -> str:
    """Return how much is removed: a count of units, or a percentage of weights."""
    return str(results.count(removed)) if results.counted else f"{100 * removed:g} %"


def reached(results: Results, removed: float, last: float) -> str:
    """Return a level with ≥ where the curve ends there, so that more may be possible."""
    return ("≥ " if removed == last < 1 and removed else "") + level(results, removed)


def of_units(results: Results) -> str:
    """Return ` of 72` for units that are counted."""
    return f" of {results.units}" if results.counted else ""


def name(results: Results, key: Key) -> str:
    """Return the name of a curve: the method, with its phase if there is more than one-shot pruning."""
    return key[0] if results.phases == [ONE_SHOT] else f"{key[0]} {key[1]}"


def ranges(results: Results, levels: Sequence[float], among: Sequence[float], most: int = 5) -> str:
    """Return levels with neighbours joined: 24–36, 48."""
    out: list[list[str]] = []
    for i, removed in enumerate(among):
        if removed in levels and i and among[i - 1] in levels:
            out[-1][1:] = [level(results, removed)]
        elif removed in levels:
            out.append([level(results, removed)])
    return ", ".join("–".join(ends) for ends in out[:most]) + (", …" if len(out) > most else "")


def units(results: Results) -> str:
    """Return what can be removed: 144 heads, or 12 heads, each used 12 times."""
    often = f", each used {results.uses} times" if results.uses > 1 else ""
    also = f", with {' and '.join(results.also)}" if results.also else ""
    return f"{results.units:,} {results.target}{often}{also}"


def examples(results: Results, split: str = "validation") -> str:
    """Return how many examples a split has: 872 examples; of running text, 30 blocks."""
    n = results.examples.get(split)
    kind = "blocks" if metrics.load(results.metric).kind == "language" else "examples"
    return f"{n} {kind}" if n else ""
