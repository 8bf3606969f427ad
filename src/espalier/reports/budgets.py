"""Budgets in words: what was reached, whether that is enough, and what it cost on test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..evaluation.cost import short
from . import text
from .tables import Table
from .text import measured_interval

UNSTEADY = 1.25  # of two quartiles of times


def verdict_lines(facts: Mapping[str, Any]) -> list[str]:
    """Say of every budget whether it was met, and what it cost on test data."""
    lines = []
    for one in facts.get("family", [facts] if "budget" in facts else []):
        budget, metric = one["budget"], one["metric"]
        met = "met" if budget["met"] else "NOT MET"
        change = one["change"]["test"]
        known = change["value"] is not None
        cost = describe_change(metric, change, one["after"]["test"]["n"]) if known else "undefined"
        cost += f", agreement with {one['model']}" if one.get("agreement") else ""
        first = one["original"]["model"]
        cost += f" against {first}, the original" if first != one["model"] else ""
        if budget["kind"] == "tolerance":  # chosen on validation data, judged on test data
            lost = f"{max(0.0, budget['achieved']):.4g} lost on validation"
            lines.append(f"tolerance {budget['asked']}: test {metric} {cost}, {met}; {lost}")
        else:
            reached = f"{budget['kind']} {budget['asked']}: {_achieved(budget)}, {met}"
            lines.append(f"{reached}; test {metric} {cost}{_unsteady(one, budget['kind'])}")
        if one["before"]["parameters"] == one["after"]["parameters"]:
            lines[-1] += "; nothing could be removed"
    return lines


def _unsteady(facts: Mapping[str, Any], kind: str) -> str:
    """Say that times vary, where a budget is a time."""
    if kind not in ("speedup", "latency"):
        return ""
    low, high = facts["latency"]["ratio"] if kind == "speedup" else _ends(facts["latency"]["after"])
    if high <= UNSTEADY * low:
        return ""
    ends = f"{low:.3g} and {high:.3g}" + (" ms" if kind == "latency" else "")
    return f"; times vary, half of the passes lie between {ends}"


def _ends(latency: Mapping[str, float]) -> tuple[float, float]:
    return 1e3 * latency["low"], 1e3 * latency["high"]


def _achieved(budget: Mapping[str, Any]) -> str:
    """Return what was reached in the unit in which it was asked for."""
    value, kind = budget["achieved"], budget["kind"]
    shown = {"size": f"{value / 1e6:.4g}MB ({value / 2**20:.4g} MiB)", "latency": f"{1e3 * value:.4g}ms"}
    shown["speedup"] = f"{value:.3g}"
    return shown.get(kind, f"{value:.4g}")


def describe_change(metric: str, change: Mapping[str, Any], n: int) -> str:
    """Return a change and its interval as measured on `n` examples."""
    return text.change(metric, [change[name] for name in ("value", "low", "high")], n, text.four_digits)


def family_table(family: Sequence[Mapping[str, Any]]) -> Table:
    """Show models of several budgets, the unpruned one first."""
    first = family[0]
    rows = [{"budget": "none", "achieved": "", **_size_cells(first["before"], 1.0)}]
    for one in family:
        budget = one["budget"]
        asked, met = f"{budget['kind']} {budget['asked']}", "met" if budget["met"] else "NOT MET"
        cells = _size_cells(one["after"], one["speedup"])
        rows.append({"budget": asked, "achieved": f"{_achieved(budget)}, {met}", **cells})
    took = f"{1e3 * first['latency']['before']['median']:.3g} ms a pass before"
    return Table(rows, caption=f"{latency_caption(first['latency'])}; {took}")


def _size_cells(found: Mapping[str, Any], speed: float) -> dict[str, str]:
    test = found["test"]
    return {
        f"test {test['metric']}": measured_interval(test),
        "block MACs": short(found["macs"]),
        "MiB": f"{found['bytes'] / 2**20:.1f}",
        "speed": f"{speed:.2f}×",
    }


def latency_caption(found: Mapping[str, Any]) -> str:
    """Say what was timed: `medians of 21 passes in turns: batch 1, 128 tokens, 1 thread`."""
    threads = f"{found['threads']} thread{'s' if found['threads'] > 1 else ''}"
    about = f"batch {found['batch_size']}, {found['max_length']} tokens, {threads}"
    return f"medians of {found['rounds']} passes in turns, speed pass by pass: {about}"
