"""How numbers are said: percent for shares, points for differences, brackets for intervals."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.results import LOWER_IS_BETTER, Results

SHARES = ("accuracy", "f1")
NAMES = {
    "accuracy": "Accuracy",
    "f1": "F1",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "perplexity": "Perplexity",
}
MINUS = "−"
SCORES = {  # what the numbers of a criterion are; bigger means keep
    "gnorm": "ln of the product of gradient norms",
    "entropy": "minus the entropy, in nats",
    "taylor": "change of the loss",
    "magnitude": "sum of squared weights",
}


def value(metric: str, number: float | None, unit: bool = True) -> str:
    """90.08 % of an accuracy, 12.31 of a perplexity, 0.842 of a correlation."""
    if number is None:
        return ""
    if metric in SHARES:
        return f"{100 * number:.2f}{' %' if unit else ''}"
    return f"{number:.2f}" if metric in LOWER_IS_BETTER else f"{number:.3f}".replace("-", MINUS)


def difference(metric: str, number: float | None) -> str:
    """With its sign; more is better for every metric (a perplexity's are in hundredths of its logarithm)."""
    if number is None:
        return ""
    scaled = metric in SHARES or metric in LOWER_IS_BETTER
    digits, shown = (2, 100 * number) if scaled else (3, number)
    text = f"{round(shown, digits) + 0.0:+.{digits}f}"  # + 0.0: there is no minus nothing
    return text.replace("-", MINUS)


def span(low: str, high: str) -> str:
    return f" [{low}, {high}]" if low and high else ""


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:+.2f} %".replace("-", MINUS)


def runs(levels: Sequence[int], among: Sequence[int], most: int = 5) -> str:
    """[24, 30, 36, 48] among 24, 30, … 60: '24–36, 48', so that a stretch is seen as one."""
    places = {k: i for i, k in enumerate(among)}
    out: list[list[int]] = []
    for k in levels:
        if out and places[k] == places[out[-1][1]] + 1:
            out[-1][1] = k
        else:
            out.append([k, k])
    more = ", …" if len(out) > most else ""
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in out[:most]) + more


def units(results: Results) -> str:
    """144 heads, or: 12 heads, each used 12 times"""
    times = f", each used {results.uses} times" if results.uses > 1 else ""
    return f"{results.units} {results.target}{times}"


def examples(results: Results) -> str:
    """872 examples; of running text, 30 blocks; nothing where nobody counted"""
    n = results.examples.get("validation")
    return f"{n} {'blocks' if results.metric == 'perplexity' else 'examples'}" if n else ""


def at_least(removed: int, last: int, units: int) -> str:
    """36, or ≥ 36 where a curve was measured to 36 of 72 and was still near enough."""
    return f"≥ {removed}" if removed == last < units else str(removed)


def of_differences(metric: str) -> str:
    """Their unit and their sign, which is the same for every metric."""
    if metric in LOWER_IS_BETTER:
        return f"differences: in hundredths of ln({metric}), + is better, as is above"
    return "differences: in points, + is better" if metric in SHARES else "differences: + is better"


def within(share: float, metric: str) -> str:
    if metric in LOWER_IS_BETTER:
        return f"{100 * share:g} %"
    return f"{100 * share:g} point{'' if share == 0.01 else 's'}"


def better(metric: str) -> str:
    """Beside a difference whose + means better, a lower perplexity would read as a contradiction."""
    return "better" if metric in LOWER_IS_BETTER else "higher"


def worse(metric: str) -> str:
    return "worse" if metric in LOWER_IS_BETTER else "lower"
