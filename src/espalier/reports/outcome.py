"""Outcomes: what a verb returns. Facts for programs, tables for people, HTML in a notebook."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.results import Results
from ..core.terminal import visible
from ..core.types import PreTrainedModel
from ..evaluation.cost import short
from .budgets import describe_change, family_table, latency_caption
from .tables import Table
from .text import measured_interval, number

if TYPE_CHECKING:
    from ..core.mask import Scores

SPLITS = ("validation", "test")
BAR = 12  # characters of a full layer
LEAST_SHOWN = 5e-5  # of weights that are zero: fp16 makes a few


@dataclass
class Outcome:
    """The result of a verb: `facts` as plain JSON, `tables`, `notes` and `verdicts` to read."""

    facts: dict[str, Any]
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folder: Path | None = None
    verdicts: list[str] = field(default_factory=list, kw_only=True)  # whether what was asked for was reached

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain JSON; what is NaN or infinite is None."""
        return {str(name): _plain(value) for name, value in self.facts.items()}

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    def __repr__(self) -> str:
        lines = map(visible, [*self.notes, *self.verdicts])
        return "\n".join([*(table.to_text() for table in self.tables), *lines])

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(note)}</p>" for note in [*self.notes, *self.verdicts])
        return "".join(table.to_html() for table in self.tables) + notes


@dataclass(repr=False)
class ModelOutcome(Outcome):
    """An outcome with a model: trained, pruned or recovered."""

    model: PreTrainedModel | None = None


@dataclass(repr=False)
class ScoreOutcome(Outcome):
    """Scores of every unit; bigger means keep."""

    scores: Scores | None = None


@dataclass(repr=False)
class Comparison(Outcome):
    """A finished comparison: its results, and a report of them."""

    results: list[Results] = field(default_factory=list)

    def report(self, folder: str | Path, *, figures: bool = True) -> list[Path]:
        """Write tables and figures into a folder; return the files."""
        from . import Report

        return Report(self.results, self.facts["tolerance"]).write(folder, figures)


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)


def pruned_tables(facts: Mapping[str, Any]) -> list[Table]:
    """Show a pruned model, or a family of them."""
    if "family" in facts:
        return [family_table(facts["family"])]
    tables = [before_and_after(facts), *([layers_table(facts)] if "layers" in facts else [])]
    tables[-1].caption = "\n".join(filter(None, [tables[-1].caption, describe_pruned(facts)]))
    return tables


def describe_pruned(facts: Mapping[str, Any]) -> str:
    """Return in one sentence how much smaller and faster a model is, and at what loss."""
    before, after, metric = facts["before"], facts["after"], facts["before"]["test"]["metric"]
    parts = [
        f"{100 * (1 - after[name] / before[name]):.0f} % fewer {label}"
        for name, label in (("parameters", "parameters"), ("macs", "block MACs"))
        if before.get(name) and after[name] < before[name]
    ]
    zero = after["sparsity"]
    parts += [f"{100 * zero:.0f} % of the block weights zero"] if zero >= LEAST_SHOWN else []
    parts += [f"{facts['speedup']:.2f}× as fast"] if "speedup" in facts else []
    ends = " → ".join(number(one["test"][metric]) for one in (before, after))
    change = facts.get("change", {}).get("test", {})
    if change.get("value") is not None:
        first = facts.get("original", facts)["model"]
        than = f" against {first}" if first != facts["model"] else ""
        ends += f" ({describe_change(metric, change, before['test']['n'])}{than})"
    return f"{', '.join(parts) or 'nothing removed'}: test {metric} {ends}"


def layers_table(facts: Mapping[str, Any]) -> Table:
    """Show how many units each layer keeps, and how long a budget took."""
    rows: dict[str, dict[str, str]] = {}
    kinds = list(dict.fromkeys(one["site"].rpartition("/")[2] for one in facts["layers"]))
    for one in facts["layers"]:
        layer, _, kind = one["site"].rpartition("/")
        row = rows.setdefault(layer, {"layer": layer} | dict.fromkeys(kinds, ""))
        full = round(BAR * one["kept"] / max(1, one["units"]))
        row[kind] = f"{one['kept']:>4} of {one['units']} {'█' * full}{'·' * (BAR - full)}"
        if one.get("removed"):
            row[kind] += f" without {', '.join(map(str, one['removed']))}"
    spent = ", ".join(f"{name} {value:.0f} s" for name, value in facts.get("seconds", {}).items())
    how = [f"chosen by {facts['method']}"] if facts.get("method") else []
    how += [f"repaired by {facts['repair']}"] if facts.get("repair", "none") != "none" else []
    return Table(list(rows.values()), caption="; ".join(filter(None, [", ".join(how), spent])))


def before_and_after(facts: Mapping[str, Any]) -> Table:
    """Compare two assessments: predictions on both splits, size, speed; in 80 columns."""
    before, after = facts["before"], facts["after"]
    rows: dict[str, list[str]] = {}
    for split in SPLITS:
        rows[f"{split} {before[split]['metric']}"] = [
            measured_interval(one[split]) for one in (before, after)
        ]
    for key in ("heads", "neurons", "slots", "parameters", "macs"):
        name = f"block MACs, {before['tokens']} tokens" if key == "macs" else key
        a, b = before.get(key, 0), after.get(key, 0)
        if a != b or key in ("parameters", "macs"):
            change = f" (−{100 * (1 - b / a):.1f} %)" if a and b < a else ""
            rows[name] = [short(a), short(b) + change]
    if max(before["sparsity"], after["sparsity"]) >= LEAST_SHOWN:
        rows["zeros in block matrices"] = [f"{100 * one['sparsity']:.2f} %" for one in (before, after)]
    rows["MiB of weights"] = [f"{one['bytes'] / 2**20:.2f}" for one in (before, after)]
    if "tokens" in facts:
        tokens, share = facts["tokens"], facts["coverage"]
        rows["vocabulary tokens"] = [short(tokens["before"]), short(tokens["after"])]
        for split in SPLITS:
            covered = share[split]["share"]
            rows[f"{split} tokens kept"] = ["", "" if covered is None else f"{100 * covered:.2f} %"]
    if "speedup" in facts:
        ends = facts.get("latency", {}).get("ratio", [])
        spread = f" [{', '.join(f'{end:.2f}' for end in ends)}]" if ends else ""
        rows["speed, side by side"] = ["1.00×", f"{facts['speedup']:.2f}×{spread}"]
    caption = f"{before['validation']['n']} validation and {before['test']['n']} test examples"
    if "latency" in facts:
        caption += f"; {latency_caption(facts['latency'])}"
        times = [facts["latency"][one] for one in ("before", "after")]
        ends = [[1e3 * t[name] for name in ("median", "low", "high")] for t in times]
        rows["ms a pass, quartiles"] = [
            number(a, 3) + f" [{number(b, 3, a)}, {number(c, 3, a)}]" for a, b, c in ends
        ]
    return Table([{"": name, "before": a, "after": b} for name, (a, b) in rows.items()], caption=caption)


def assessment_tables(facts: Mapping[str, Any]) -> list[Table]:
    """Show one assessment: a row for each split, and the counts."""
    rows, reasons = [], []
    for split in SPLITS:
        found = dict(facts[split])
        n, metric, low, high = (found.pop(name) for name in ("n", "metric", "low", "high"))
        reasons += [f"undefined on {split} data: {found.pop('undefined')}"] if "undefined" in found else []
        words, segment, memory = (found.pop(name, None) for name in ("words", "segment", "memory"))
        if words is not None:
            read = f"{words:,} words and ends of lines of {split} text"
            reasons.append(f"{read}, in segments of {segment} with a memory of {memory}")
        shown = {name: number(value) for name, value in found.items()}
        ends = [] if low is None else [number(end, like=found[metric]) for end in (low, high)]
        shown[f"95 % of {metric}"] = f"[{', '.join(ends)}]" if ends else ""
        rows.append({"split": split, "examples": str(n), **shown})
    counts = {"parameters": short(facts["parameters"])}
    if facts["zeros"] is not None:  # of an exported model nobody knows
        counts |= {"zero": short(facts["zeros"]), "in block matrices": short(facts["prunable"])}
        counts["zero there"] = f"{short(facts['prunable_zeros'])} ({100 * facts['sparsity']:.2f} %)"
    counts["MiB"] = f"{facts['bytes'] / 2**20:.2f}"
    return [
        Table(rows, caption="; ".join(reasons)),
        Table([counts], caption=f"{facts['model']} on {facts['task']}"),
    ]


def points_table(facts: Mapping[str, Any]) -> Table:
    """Show what each method of a comparison chose, measured on other data."""
    rows = []
    for point in facts["points"]:
        size = {"removed": str(point["removed"]), "parameters": short(point["parameters"])}
        found = {f"{point[x]['metric']}, {point[x]['n']} of {x}": measured_interval(point[x]) for x in SPLITS}
        rows.append({"method": point["method"], **size, **found})
    about = f"each removed within {facts['tolerance']} of the base in {facts['run']}"
    return Table(rows, caption=f"{facts['model']} on {facts['task']}; {about}")


def steps_table(facts: Mapping[str, Any]) -> Table:
    """Show the pruned models of a recipe, and the one they were made of."""
    rows = []
    for one in facts["pruned"]:
        kinds = [f"{split} perplexity {when}" for split in SPLITS for when in ("before", "after")]
        shown = {kind.replace(" perplexity", ""): number(one[kind]) for kind in kinds}
        layers = " ".join(map(str, one["layers"]))
        rows.append(
            {"penalty": number(one["penalty"]), "heads": str(one["heads"]), "by layer": layers, **shown}
        )
    return Table(rows, caption=f"{facts['recipe']}: perplexity before and after pruning")


def recovered_tables(facts: Mapping[str, Any]) -> list[Table]:
    """Show a model before and after its recovery; and its epochs, where the best of several was kept."""
    return [before_and_after(facts), *([history_table(facts)] if len(facts["epochs"]) > 1 else [])]


def history_table(facts: Mapping[str, Any]) -> Table:
    """Show the epochs of a training in 80 columns."""
    names = {"loss": "train loss", "validation loss": "val. loss"}
    dense = all(row.get("sparsity", 0) < LEAST_SHOWN for row in facts["epochs"])
    rows, past = [], 0.0
    for row in facts["epochs"]:
        shown = {name: value for name, value in row.items() if not (dense and name == "sparsity")}
        past, shown["seconds"] = row["seconds"], row["seconds"] - past
        shown = {names.get(name, name.removeprefix("validation ")): value for name, value in shown.items()}
        rows.append({name: _cell(value) for name, value in shown.items()})
    seconds = f"{facts['steps']} steps in {facts['seconds']:.0f} seconds"
    about = f"{facts['folder'] or facts['model']}: {facts['examples']} examples, {seconds}"
    measured = any(name.startswith("validation ") for row in facts["epochs"] for name in row)
    return Table(rows, caption=about + ("; measured on validation data" if measured else ""))


def _cell(value: Any) -> str:
    return "undefined" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def scores_table(facts: Mapping[str, Any], scores: Mapping[str, Any]) -> Table:
    """Show every score where a site has few units, else their range."""
    title = ": ".join(filter(None, (facts["criterion"], facts["unit"])))
    caption = f"bigger means keep; {facts['n']} training examples"
    wide = max((values.numel() for values in scores.values()), default=0)
    if wide <= 32 and all(values.dim() == 1 for values in scores.values()):
        rows = [{"site": name, **_cells(values.tolist(), wide)} for name, values in scores.items()]
    else:
        ends = {"lowest": "min", "median": "median", "highest": "max"}
        rows = [
            {"site": name, **{end: f"{getattr(values, which)():.4g}" for end, which in ends.items()}}
            for name, values in scores.items()
        ]
    return Table(rows, title=title, caption=caption)


def _cells(values: Sequence[float], wide: int) -> dict[str, str]:
    return {str(i): f"{values[i]:.2f}" if i < len(values) else "" for i in range(wide)}


def evaluation_tables(facts: Mapping[str, Any]) -> list[Table]:
    """Show one assessment, or what the methods of a comparison chose."""
    return [points_table(facts)] if "points" in facts else assessment_tables(facts)
