"""Budgets in words: what was reached, whether that is enough, and what it cost on test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..evaluation.cost import short
from . import text
from .tables import Table
from .text import measured_interval


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
        lines.append(f"{budget['kind']} {budget['asked']}: {_achieved(budget)}, {met}; test {metric} {cost}")
    return lines


def _achieved(budget: Mapping[str, Any]) -> str:
    """Return what was reached in the unit in which it was asked for."""
    value, kind = budget["achieved"], budget["kind"]
    if kind == "tolerance":  # on test data it is judged, not chosen
        return f"{max(0.0, value):.4g} lost on validation"
    shown = {"size": f"{value / 1e6:.4g}MB", "latency": f"{1e3 * value:.4g}ms", "speedup": f"{value:.3g}"}
    return shown.get(kind, f"{value:.4g}")


def describe_change(metric: str, change: Mapping[str, Any], n: int) -> str:
    """Return a change and its interval as measured on `n` examples."""
    return text.change(metric, [change[name] for name in ("value", "low", "high")], n, text.four_digits)


def family_table(family: Sequence[Mapping[str, Any]]) -> Table:
    """Show models of several budgets, the unpruned one first."""
    first = family[0]
    rows = [{"budget": "none", "achieved": "", **_size_cells(first["before"], first["latency"]["before"])}]
    for one in family:
        budget = one["budget"]
        cells = _size_cells(one["after"], one["latency"]["after"])
        asked = f"{budget['kind']} {budget['asked']}"
        rows.append({"budget": asked, "achieved": _achieved(budget), **cells})
    return Table(rows, caption=latency_caption(first["latency"]))


def _size_cells(found: Mapping[str, Any], latency: Mapping[str, Any]) -> dict[str, str]:
    test = found["test"]
    return {
        f"test {test['metric']}": measured_interval(test),
        "block MACs": short(found["macs"]),
        "MiB": f"{found['bytes'] / 2**20:.1f}",
        "ms": f"{1e3 * latency['median']:.2f}",
    }


def latency_caption(found: Mapping[str, Any]) -> str:
    """Say what was timed: `median of 21 passes: batch 1, 128 tokens, 1 thread`."""
    threads = f"{found['threads']} thread{'s' if found['threads'] > 1 else ''}"
    about = f"batch {found['batch_size']}, {found['max_length']} tokens, {threads}"
    return f"median of {found['rounds']} passes: {about}"
