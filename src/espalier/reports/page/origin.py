"""How a run can be repeated: the command that its record amounts to, versions, seeds, data, fingerprints."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from html import escape
from typing import Any

from ...analysis.curves import Tolerance
from ...analysis.results import Results
from ...core.call import COLUMNS, SET
from ..tables import Table

SPLITS = ("calibration", "validation", "test")


def command(results: Results, tolerance: Tolerance) -> str:
    """Return the command that does the same again; empty if the run has no record."""
    record = results.record
    if not record:
        return ""
    sizes = {name: (record.get("splits") or {}).get(name, {}).get("n") for name in SPLITS}
    columns, last = record.get("columns") or {}, results.levels[-1]
    levels = ",".join(f"{x:g}" for x in results.levels) if not results.counted else f"{last:.6g}"
    options: dict[str, Any] = {
        "task": results.task,
        "columns": ",".join(f"{name}={columns[name]}" for name in COLUMNS if name in columns),
        "target": "+".join([results.target, *results.also]),
        "methods": ",".join(_typed(method, results.settings.get(method) or {}) for method in results.methods),
        "remove": None if results.counted and last == 1 else levels,
        **sizes,
        **{name.replace("_", "-"): record.get(name) for name in ("max_length", "seed")},
        "tolerance": tolerance,
    }
    training = results.training or {}
    options |= {name: training.get(name) for name in ("epochs", "schedule", "lr", "examples")}
    words = ["espalier", "compare", str(record.get("model", results.model))]
    for name, value in options.items():
        words += [] if value in (None, "") else [f"--{name}", str(value)]
    others = {"precision": record.get("precision"), "split_seed": record.get("split_seed")}
    for name, value in {**others, **{name: columns.get(name) for name in SET}}.items():
        words += [] if value in (None, 0, "fp32") else ["--set", f"{name}={value}"]
    return shlex.join([*words, "-o", results.source or "run"])


def _typed(label: str, settings: Mapping[str, Any]) -> str:
    """Return a method with the steps that were set for all methods."""
    steps = {
        "step": settings.get("step") if settings.get("rescore") else None,
        "every": settings.get("every"),
    }
    added = [f":{name}={n}" for name, n in steps.items() if n not in (None, 1) and f":{name}=" not in label]
    return label + "".join(added)


def section(results: Results, tolerance: Tolerance) -> str:
    """Return the command, and a table of what else decides the numbers."""
    record = results.record
    if not record:
        return "<p>The files that this was read from do not say how they were made.</p>"
    splits = record.get("splits") or {}
    rows = {
        "weights": f"{record.get('class', '')} {record.get('fingerprint', '')}".strip(),
        "data": results.task,
        **{
            f"{name} examples": f"{splits[name].get('n', '')} ({splits[name].get('fingerprint', '')})"
            for name in SPLITS
            if name in splits
        },
        "seed": record.get("seed"),
        "seed of the splits": record.get("split_seed"),
        "tokens of a text": record.get("max_length"),
        "precision": record.get("precision"),
        **(record.get("versions") or {}),
    }
    shown = [{"": name, "value": str(value)} for name, value in rows.items() if value not in (None, "")]
    typed = escape(command(results, tolerance))
    return f"<pre><code>{typed}</code></pre><div class='scroll'>{Table(shown).to_html()}</div>"
