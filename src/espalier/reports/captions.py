"""Captions: which data, which rule, which levels, what stands in brackets."""

from __future__ import annotations

from itertools import pairwise

from ..analysis.curves import BASE, GRADUAL, ONE_SHOT, RECOVERED, Curve
from ..analysis.results import Results
from . import text


def describe(results: Results, tolerance: float) -> str:
    """Return the caption of a model's tables."""
    base = text.value(results.metric, results.show(results.base))
    near = text.describe_tolerance(tolerance, results.metric)
    parts = [
        f"{results.model}: {text.label(results.metric)} {base} unpruned, {text.units(results)}",
        describe_data(results),
        _describe_training(results),
        f"removed: the longest unbroken stretch within {near} of the unpruned model on validation data",
        _describe_ends(results),
        *describe_levels(results),
        _describe_collapse(results),
        _describe_random(results),
        "in brackets: 95 % paired bootstrap intervals over examples"
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
    fixed = [
        key for key in results.keys if not results.curves[key].trials and results.steps.get(key[0]) != "auto"
    ]
    every = max((_gap(results, results.curves[key]) for key in fixed), default=1)
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
    out = [
        how if len(methods) == len(keys) else f"{', '.join(methods)} {how}"
        for how, methods in groups.items()
        if how
    ]
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


def _describe_collapse(results: Results) -> str:
    if results.majority is None:
        return ""
    share = text.value(results.metric, results.majority)
    rule = f"collapse: the first level that is not above the most frequent class, {share}"
    weak = results.base <= results.majority
    return rule + ("; the unpruned model is not above it either, so no rule means anything" if weak else "")


def _describe_random(results: Results) -> str:
    random = [key for key in results.keys if results.curves[key].trials]
    if not random or results.random is None:
        return ""
    most = f"random: {results.random}, which has the most trials; " if len(random) > 1 else ""
    return f"{most}in parentheses: lowest–highest trial"


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
