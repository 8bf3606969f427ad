"""What a reader must know of a table or a figure: whose numbers, of which data, at which levels."""

from __future__ import annotations

from itertools import pairwise

from ..analysis.results import Results
from . import words


def caption(results: Results, within: float, brief: bool = False) -> str:
    """Under a table: the base, the data, the rule, the levels, the intervals, the units of differences."""
    base = words.value(results.metric, results.show(results.base))
    said = [
        f"{results.model}: {words.NAMES.get(results.metric, results.metric)} {base} unpruned, "
        f"{words.units(results)}",
        data(results),
        rule(results, within),
        ended(results),
        *levels(results),
        _random(results),
        "in brackets: 95 % paired bootstrap intervals over examples"
        if results.answers
        else "no intervals: no answers were kept",
        "in parentheses: lowest–highest trial" if results.trials and not brief else "",
        words.of_differences(results.metric),
    ]
    return "; ".join(filter(None, said))


def data(results: Results) -> str:
    """validation data of sst2, 872 examples"""
    if not results.task:
        return ""
    return ", ".join(filter(None, [f"validation data of {results.task}", words.examples(results)]))


def under_title(results: Results) -> str:
    """The same for the few words above a panel."""
    even = [c.removed for label, c in results.curves.items() if results.steps.get(label) != "auto"]
    every = max(map(gap, even), default=1)
    said = [
        f"{results.task}, validation" if results.task else "",
        words.examples(results),
        f"every {every} {results.target}" if every > 1 else "",
    ]
    return ", ".join(filter(None, said))


def rule(results: Results, within: float) -> str:
    near = words.within(within, results.metric)
    return f"removed: the longest unbroken stretch within {near} of it"


def ended(results: Results) -> str:
    """measured to 36 of 72 (≥: no end was seen), area over the measured part"""
    ends = {label: results.curve(label).removed[-1] for label in results.labels}
    short = {label: end for label, end in ends.items() if end < results.units}
    if not short:
        return ""
    if len(set(ends.values())) == 1:
        where = f"measured to {next(iter(ends.values()))} of {results.units}"
    else:
        each = ", ".join(f"{label} to {end}" for label, end in short.items())
        where = f"measured to {results.units}, but {each}"
    return f"{where} (≥: the stretch reaches that end), area over the measured part"


def levels(results: Results) -> list[str]:
    """After how many units it was measured and scored again, where that is not after each."""
    out = []
    paced = [label for label, step in results.steps.items() if step == "auto"]
    fixed = {label: c for label, c in results.curves.items() if label not in paced}
    coarse = _by_number({label: gap(c.removed) for label, c in fixed.items()})
    for every, labels in coarse.items():
        who = "" if len(labels) == len(results.curves) else f"{', '.join(labels)} "
        out.append(f"{who}measured after every {every} {results.target}")
    again = {label: int(step) for label, step in results.steps.items() if label in fixed}
    for label in paced:
        if label in results.curves:
            seen = len(results.curves[label].removed) - 1
            out.append(f"{label} scored and measured {seen} times, at steps of its own")
    for step, labels in _by_number(again).items():
        who = ", ".join(labels)
        out.append(f"{who} scored again after every {step}")
    fine = min((gap(c.removed) for c in results.curves.values()), default=0)
    for label, trials in results.trials.items():
        every = gap(trials.removed)
        if fine and every > fine:
            out.append(f"{label} measured after every {every}: its stretch sees fewer levels, a kinder rule")
    return out


def gap(removed: tuple[int, ...]) -> int:
    """The usual distance between two levels: the last may be shorter."""
    return max((b - a for a, b in pairwise(removed)), default=1)


def _by_number(numbers: dict[str, int]) -> dict[int, list[str]]:
    out: dict[int, list[str]] = {}
    for label, number in numbers.items():
        if number > 1:
            out.setdefault(number, []).append(label)
    return out


def _random(results: Results) -> str:
    if len(results.trials) < 2:
        return ""
    return f"random: {results.random}, which has the most trials"
