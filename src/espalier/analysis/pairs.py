"""Pairs of curves: differences of their areas and at each level, with paired intervals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .bootstrap import Bootstrap, Interval
from .curves import ONE_SHOT, RECOVERED, levels_above, shared_levels
from .results import Key, Results

Row = dict[str, Any]
SCORING = ("static", "greedy")  # words of a label that change when a method scores, not what


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
