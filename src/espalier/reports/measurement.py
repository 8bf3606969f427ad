"""What `measure` and `export` show: tables of at most 80 columns, latency and Pareto figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.call import spell
from ..evaluation import metrics
from ..evaluation.cost import short
from ..experiment.exporter import export_model
from ..experiment.latency import measure_models
from ..io.files import make_folder, write_json
from ..io.paths import optional_path
from . import style
from .budgets import describe_change
from .outcome import Outcome
from .tables import Table
from .text import measured_interval, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..experiment.session import AnyModel, AnyTask

MEASUREMENTS = "measurements.json"
LONGEST = 22  # characters of a model's name in a table
COLOURS = {"torch": "#1F3A5F", "onnx": "#C4622D", "openvino": "#2E8B57"}
Row = Mapping[str, Any]


def measure(
    model: AnyModel | Sequence[AnyModel],
    against: AnyModel | None = None,
    *,
    task: AnyTask | None = None,
    engine: str | Sequence[str] = "torch",
    batch_size: int | Sequence[int] = 1,
    max_length: int | Sequence[int] = 128,
    rounds: int = 20,
    memory: bool = False,
    folder: str | Path | None = None,
    **more: Any,
) -> Outcome:
    """Measure latency of models, saved, exported or live, interleaved in one run, and count them.

    `engine`: torch, onnx, openvino; exported models run in their own. A `task` evaluates each: docs/ship.md.
    """
    how: Any = dict(task=task, engine=engine, batch_size=batch_size, max_length=max_length, rounds=rounds)
    facts = measure_models(model, against, **how, memory=memory, **more)
    notes = write_figures(facts, place) if (place := optional_path(folder)) else []
    return Outcome(facts, latency_tables(facts), [*notes, *disturbance(facts)], place)


def disturbance(facts: Row) -> list[str]:
    """Say that other programs kept the processor busy before the first pass, if they did."""
    busy, cores, threads = facts.get("others_running") or 0.0, facts.get("cores") or 1, facts["threads"]
    if busy < 0.5 or busy + threads <= cores:
        return []
    return [
        f"Other programs were running ({busy:.1f} threads, {threads} of this one, {cores} cores), which "
        "disturbs what is timed: repeat it on a quiet machine, or with OMP_NUM_THREADS=1"
    ]


def export(
    model: AnyModel,
    folder: str | Path,
    *,
    to: str = "plain",
    int8: bool = False,
    task: AnyTask | None = None,
    ranges: str | None = None,
    kv_cache: bool = True,
    overwrite: bool = False,
    **more: Any,
) -> Outcome:
    """Write a model for use without espalier: `to` onnx, openvino, or plain, where one config describes it.

    Outputs are compared with torch's first. `int8` has `ranges` of activations that are dynamic or static. A
    `task` calibrates it and evaluates the result; `more`: tokenizer, max_shard_size, `SessionOptions`.
    Language models have their cache of keys and values as inputs and outputs, unless `kv_cache` is false.
    """
    how: Any = dict(int8=int8, ranges=ranges, kv_cache=kv_cache, overwrite=overwrite)
    facts = export_model(model, Path(folder), to, task, **how, **more)
    step = "It loads with transformers alone, by from_pretrained."
    if to != "plain":
        step = f"Time it: {spell('measure', folder, against=model)}"
    return Outcome(facts, export_tables(facts), [f"The model is in {folder}. {step}"], Path(folder))


def latency_tables(facts: Mapping[str, Any]) -> list[Table]:
    """Show the speed at each shape, then what does not depend on it."""
    by_shape: dict[tuple[int, int], list[Row]] = {}
    for one in facts["models"]:
        by_shape.setdefault((one["batch_size"], one["max_length"]), []).append(one)
    threads = f"{facts['threads']} thread{'s' if facts['threads'] > 1 else ''}"
    about = f"median and quartiles of {facts['rounds']} interleaved passes, {threads}"
    tables = []
    for (batch, length), rows in by_shape.items():
        cells = [_speed_cells(one) for one in rows]
        tables.append(Table(cells, title=f"batch {batch}, {length} tokens"))
    if any(one["peak_bytes"] for one in facts["models"]):
        about += "; peak: MiB of a process of its own at this shape, with its libraries"
    tables[-1].caption = about
    first = next(iter(by_shape.values()), [])
    caption = "block MACs at 128 tokens"
    return [*tables, Table([_size_cells(one) for one in first], caption=caption)]


def _speed_cells(one: Row) -> dict[str, str]:
    return {
        "model": _shorten(one["model"]),
        "engine": f"{one['engine']} {one['precision']}",
        "ms": f"{1e3 * one['median']:.2f}",
        "quartiles": f"{1e3 * one['low']:.2f}–{1e3 * one['high']:.2f}",
        "speed": "" if one["speedup"] is None else f"{one['speedup']:.2f}×",
        "per s": f"{one['sequences_per_second']:.3g}",
        "J": "" if one["joules"] is None else f"{one['joules']:.3g}",
        "peak": "" if one["peak_bytes"] is None else f"{one['peak_bytes'] / 2**20:.0f}",
    }


def _size_cells(one: Row) -> dict[str, str]:
    test = one["test"]
    return {
        "model": _shorten(one["model"]),
        "engine": f"{one['engine']} {one['precision']}",
        "parameters": short(one["parameters"]),
        "MACs": short(one["macs"]),
        "MiB": f"{one['bytes'] / 2**20:.1f}",
        "test": "" if test is None else number(test[test["metric"]]),
    }


def _shorten(name: str) -> str:
    return name if len(name) <= LONGEST else "…" + name[1 - LONGEST :]


def export_tables(facts: Mapping[str, Any]) -> list[Table]:
    """Show how an exported model compares with torch: outputs at several shapes, predictions on test data."""
    if "checked" not in facts:
        return []
    int8 = facts["int8"]
    rows = []
    for i, one in enumerate(facts["checked"]):
        row = {"batch": str(one["batch_size"]), "tokens": str(one["length"])}
        row["from torch"] = f"{one['difference']:.1e}"
        row["int8 from torch"] = f"{int8['checked'][i]['difference']:.1e}" if int8 else ""
        rows.append(row)
    fused = ", ".join(f"{count} {name}" for name, count in facts["fused"].items()) or "nothing"
    caption = f"fused: {fused}; {facts['bytes'] / 2**20:.1f} MiB"
    if facts["cache"]:
        worst = max(one["difference"] for one in facts["steps"])
        caption += (
            f"; with its cache: steps differ by {worst:.1e}, {facts['generated']} generated tokens are equal"
        )
    elif facts["cache_refused"]:
        caption += f"; without a cache: {facts['cache_refused']}"
    if int8:
        caption += f"; int8 by {int8['quantiser']}, {int8['ranges']} ranges"
        caption += f" of {int8['calibration']} examples" if int8["calibration"] else ""
    title = f"largest difference of {facts['to']} from torch (fp32 within {facts['tolerance']:g})"
    tables = [Table(rows, title=title, caption=caption)]
    if "torch" in facts:
        test, change = facts["torch"], facts["change"]
        shown = [{"": name, test["metric"]: measured_interval(facts[name])} for name in ("torch", "exported")]
        lost = describe_change(test["metric"], change, test["n"]) or "undefined"
        agree = facts["same_predictions"]
        same = "" if agree is None else f", the same prediction for {100 * agree:.2f} %"
        tables.append(Table(shown, caption=f"{test['n']} test examples, change {lost}{same}"))
    return tables


def write_figures(facts: Mapping[str, Any], folder: Path) -> list[str]:
    """Write the measurements, a figure of the latency and, where models were evaluated, a Pareto plot."""
    make_folder(folder)
    write_json(folder / MEASUREMENTS, facts)
    with style.matplotlib_settings():
        drawn = style.save(_draw_latency(facts["models"]), folder / "latency")
        if any(one["test"] for one in facts["models"]):
            drawn += style.save(_draw_pareto(facts["models"]), folder / "pareto")
    return [f"Figures: {', '.join(path.name for path in drawn if path.suffix == '.png')} in {folder}"]


def _shapes(rows: Sequence[Row]) -> list[tuple[int, int]]:
    return list(dict.fromkeys((one["batch_size"], one["max_length"]) for one in rows))


def _at(rows: Sequence[Row], shape: tuple[int, int]) -> list[Row]:
    return [one for one in rows if (one["batch_size"], one["max_length"]) == shape]


def _label(one: Row) -> str:
    return f"{style.plain(_shorten(one['model']))}, {one['engine']} {one['precision']}"


def _draw_latency(rows: Sequence[Row]) -> Any:
    """Draw a bar for every model and engine, with its quartiles, a panel for every shape."""
    shapes = _shapes(rows)
    height = 0.55 + 0.24 * len(_at(rows, shapes[0]))
    figure, axes = style.panels([height] * len(shapes))
    for axis, shape in zip(axes, shapes):
        here = _at(rows, shape)
        middle = [1e3 * one["median"] for one in here]
        ends = [
            [1e3 * (one["median"] - one["low"]) for one in here],
            [1e3 * (one["high"] - one["median"]) for one in here],
        ]
        colours = [COLOURS.get(one["engine"], style.GREY) for one in here]
        axis.barh(
            range(len(here)), middle, xerr=ends, color=colours, height=0.7, error_kw={"elinewidth": 0.7}
        )
        for i, one in enumerate(here):
            faster = "" if one["speedup"] is None else f"{one['speedup']:.1f}×"
            axis.text(1e3 * one["high"], i, f" {middle[i]:.1f} ms  {faster}", va="center", fontsize=6)
        axis.set_yticks(range(len(here)), [_label(one) for one in here])
        axis.invert_yaxis()
        axis.set_xlim(0, 1.35 * max(1e3 * one["high"] for one in here))
        axis.set_title(f"batch {shape[0]}, {shape[1]} tokens")
        axis.set_xlabel("ms a pass: median and quartiles")
    return figure


def _draw_pareto(rows: Sequence[Row]) -> Any:
    """Draw the metric on test data against latency; a line joins the models that no other beats."""
    shapes = _shapes(rows)
    figure, axes = style.panels([2.6] * len(shapes))
    names: dict[str, Any] = {}
    for axis, shape in zip(axes, shapes):
        here = [one for one in _at(rows, shape) if one["test"]]
        here = [one for one in here if one["test"][one["test"]["metric"]] is not None]
        if here:
            names |= _draw_points(axis, here)
        axis.set_title(f"batch {shape[0]}, {shape[1]} tokens")
        axis.set_xlabel("ms a pass, median")
    if names:
        style.legend_below(figure, names)
    return figure


def _draw_points(axis: Axes, here: Sequence[Row]) -> dict[str, Any]:
    """Draw numbered points with their intervals; return what the numbers mean."""
    metric = metrics.load(here[0]["test"]["metric"])
    scale = 100 if metric.share else 1
    points = [(1e3 * one["median"], scale * one["test"][metric.name]) for one in here]
    names = {}
    for place, (one, (x, y)) in enumerate(zip(here, points), 1):
        test, colour = one["test"], COLOURS.get(one["engine"], style.GREY)
        if test["low"] is not None:
            ends = [scale * test["low"], scale * test["high"]]
            axis.plot([x, x], ends, color=colour, linewidth=0.6, alpha=0.6)
        marker = "s" if one["precision"] == "int8" else "o"
        shown: Any = {"color": colour, "marker": marker, "markersize": 4.5, "linestyle": "none"}
        (names[f"{place} {_label(one)}"],) = axis.plot([x], [y], **shown)
        axis.annotate(str(place), (x, y), xytext=(4, 3), textcoords="offset points", fontsize=7)
    best = [points[i] for i in pareto(points, lower=metric.lower_is_better)]
    axis.plot(*zip(*best), color=style.GREY, linewidth=0.8, zorder=1, drawstyle="steps-post")
    axis.set_ylabel(f"{metric.label} on test data{', %' if metric.share else ''}")
    axis.set_xlim(0, 1.1 * max(x for x, _ in points))
    return names


def pareto(points: Sequence[tuple[float, float]], *, lower: bool = False) -> list[int]:
    """Return which points no other beats: none is as fast and better. From fast to slow."""
    sign = -1 if lower else 1
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -sign * points[i][1]))
    best, kept = float("-inf"), []
    for i in order:
        if sign * points[i][1] > best:
            best = sign * points[i][1]
            kept.append(i)
    return kept
