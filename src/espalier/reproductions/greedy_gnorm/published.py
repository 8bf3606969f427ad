"""The files of the Greedy-Gnorm repository, read and written: accuracy against heads pruned.

pruned_heads_accuracy(<MODEL>)basedon<STRATEGY>.csv    one curve
<MODEL>randompruned_heads_data_<trials>x<levels>_<group>.xlsx    trials of random removal
orders.json    beside them, if somebody wrote down which heads went
https://github.com/dionysus23334/Greedy-Gnorm
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ...analysis.curves import Curve, Trials
from ...analysis.results import Cost, Results, Unit
from ...core.errors import EspalierError
from ...io.json_file import read_json, write_json
from .accuracy_files import read_curve, read_trials, write_curve, write_trials

LABELS = {
    "GreedyGnorm": "gnorm",
    "InverseGreedyGnorm": "gnorm:reverse",
    "AE": "entropy",
    "AEinverse": "entropy:reverse",
}
CURVE_FILE = re.compile(r"pruned_heads_accuracy\((?P<model>.+)\)basedon(?P<strategy>.+)\.csv")
TRIALS_FILE = re.compile(r"(?P<model>.+?)randompruned_heads_data_\d+x\d+_(?P<group>.+)\.xlsx")
Shape = dict[str, Any]


@dataclass
class _Found:
    """What lies there for one model."""

    curves: dict[str, Path] = field(default_factory=dict)
    trials: dict[Path, str] = field(default_factory=dict)  # file -> its group
    orders: dict[str, Any] = field(default_factory=dict)


def is_published(path: Path) -> bool:
    """Whether a file has one of the two names."""
    return bool(CURVE_FILE.fullmatch(path.name) or TRIALS_FILE.fullmatch(path.name))


def file_safe(name: str) -> str:
    """A name that any file system takes and that can be read back: %3A for a colon."""
    return quote(name, safe=" ()") or "model"


def strategy_file(label: str) -> str:
    """gnorm-static for gnorm:static, as long as that can be read back."""
    friendly = label.replace(":", "-")
    fits = quote(friendly, safe=" =") == friendly and strategy_label(friendly) == label
    return friendly if fits else file_safe(label).replace("-", "%2D")


def strategy_label(name: str) -> str:
    """The strategy that a file is named after, whichever way it is spelled."""
    return unquote(re.sub(r"-(?=(?:static|greedy|reverse|\w+=[^-]*)(?:-|$))", ":", name))


def read_published(
    source: str | Path | Iterable[Path], shape_of: Callable[[str], Shape | None] | None = None
) -> list[Results]:
    """One Results for each model among the files of a folder, or among these files."""
    if isinstance(source, str | Path):
        folder = Path(source)
        if not folder.is_dir():
            raise EspalierError(f"there is no folder {folder}")
        files = sorted(folder.iterdir())
    else:
        files = [Path(path) for path in source]
    found: dict[str, _Found] = {}
    for path in files:
        if match := CURVE_FILE.fullmatch(path.name):
            strategy = strategy_label(match["strategy"])
            model = found.setdefault(unquote(match["model"]), _Found())
            model.curves[LABELS.get(strategy, strategy)] = path
        elif match := TRIALS_FILE.fullmatch(path.name):
            model = found.setdefault(unquote(match["model"]), _Found())
            model.trials[path] = match["group"]
    if not found:
        raise EspalierError(
            f"no published results in {source if isinstance(source, str | Path) else 'these files'}: "
            "expected names like pruned_heads_accuracy(BERT)basedonGreedyGnorm.csv or "
            "BERTrandompruned_heads_data_50x25_1group.xlsx"
        )
    for folder in {path.parent for path in files}:
        if (folder / "orders.json").is_file():
            for name, orders in read_json(folder / "orders.json").items():
                if name in found:
                    found[name].orders = _orders(folder / "orders.json", orders)
    shapes = shape_of or _published_shape
    return [_results(name, found[name], shapes(name)) for name in found]


def write_published(results: Results, folder: str | Path) -> list[Path]:
    """Write a run as those files; their notebooks know only accuracies, so nothing else is written."""
    if results.metric != "accuracy":
        raise EspalierError(
            f"the published files hold accuracies; {results.model} was measured by {results.metric}"
        )
    if len({trials.removed for trials in results.trials.values()}) > 1:
        raise EspalierError(
            f"{' and '.join(results.trials)} have different levels; the published files join all trials"
        )
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        return _write(results, place)
    except OSError as error:
        raise EspalierError(f"cannot write to {place}: {error.strerror}") from None


def _write(results: Results, place: Path) -> list[Path]:
    name = file_safe(results.model)
    names = _names(results.labels)
    written = []
    for label, curve in results.curves.items():
        theirs = names[label] if label in names else strategy_file(label)
        path = place / f"pruned_heads_accuracy({name})basedon{theirs}.csv"
        write_curve(path, Curve(_times(curve.removed, results.uses), curve.accuracy))
        written.append(path)
    for group, trials in enumerate(results.trials.values(), 1):
        size = f"{len(trials.accuracy)}x{len(trials.removed)}"
        path = place / f"{name}randompruned_heads_data_{size}_{group}group.xlsx"
        write_trials(path, Trials(_times(trials.removed, results.uses), trials.accuracy))
        written.append(path)
    if results.orders:
        path = place / "orders.json"
        known = read_json(path) if path.exists() else {}
        even = len(set(results.layers)) == 1
        known[results.model] = {
            names.get(label, label): {
                "layers": len(results.layers),
                "heads": results.layers[0] if even else list(results.layers),
                "uses": results.uses,
                "order": [list(unit) for unit in order],
            }
            for label, order in results.orders.items()
        }
        write_json(path, known)
        written.append(path)
    return written


def _names(labels: Sequence[str]) -> dict[str, str]:
    """Their name of each strategy, whatever its options: gnorm:pooling=batch is still GreedyGnorm."""
    theirs = {label: name for name, label in LABELS.items()}
    out: dict[str, str] = {}
    for label in labels:
        criterion, *words = label.split(":")
        plain = ":".join([criterion, *(word for word in words if "=" not in word)])
        name = theirs.get(plain)
        if name and name not in out.values():
            out[label] = name
    return out


def _published_shape(model: str) -> Shape | None:
    from ..recipes import published_shape

    return published_shape(model)


def _results(model: str, found: _Found, shape: Shape | None) -> Results:
    first = [label for label in (*LABELS.values(), *found.curves) if label in found.curves]
    curves = {label: read_curve(found.curves[label]) for label in first}
    trials = read_trials(found.trials)
    every = {k for c in curves.values() for k in c.removed}
    every |= {k for t in trials.values() for k in t.removed}
    last = max(every)
    if shape is None:
        shape = _shape_by_orders(found.orders, last)
    units, uses = shape["units"], shape["uses"]
    counted = uses if all(k % uses == 0 for k in every) else 1  # the files count uses, not units
    if last // counted > units:
        path = next(iter([*found.curves.values(), *found.trials]))
        raise EspalierError(
            f"{path}: {last} heads are said to be pruned, but {model} has {units}"
            + (f", each used {uses} times" if uses > 1 else "")
        )
    for label, entry in found.orders.items():
        if entry["layers"] != list(_layers(shape)):
            raise EspalierError(
                f"orders.json speaks of {len(entry['layers'])} layers of {entry['layers'][0]} heads for "
                f"{model} by {label}; the model has {len(_layers(shape))} layers, {units} heads in all"
            )
    curves = {n: Curve(_per(c.removed, counted), c.accuracy) for n, c in curves.items()}
    trials = {n: Trials(_per(t.removed, counted), t.accuracy) for n, t in trials.items()}
    levels = {n: c.removed for n, c in curves.items()} | {n: t.removed for n, t in trials.items()}
    return Results(
        model=model,
        metric="accuracy",
        units=units,
        layers=_layers(shape),
        uses=uses,
        curves=curves,
        trials=trials,
        orders={label: entry["order"] for label, entry in found.orders.items() if label in curves},
        costs=_costs(shape, levels),
        notes=("published files: they hold no answers, so there are no intervals",),
    )


def _layers(shape: Shape) -> tuple[int, ...]:
    """Heads per layer, whether the shape lists them or only counts layers that are all alike."""
    layers = shape["layers"]
    if isinstance(layers, int):
        return (shape["units"] // layers,) * layers
    return tuple(layers)


def _times(levels: Sequence[int], uses: int) -> tuple[int, ...]:
    return tuple(k * uses for k in levels)


def _per(levels: Sequence[int], uses: int) -> tuple[int, ...]:
    return tuple(k // uses for k in levels)


def _costs(shape: Shape, levels: Mapping[str, Sequence[int]]) -> dict[str, dict[int, Cost]]:
    if not shape.get("parameters"):
        return {}
    whole, each = shape["parameters"], shape["parameters_per_unit"]
    return {label: {k: Cost(whole - k * each) for k in ks} for label, ks in levels.items()}


def _shape_by_orders(orders: dict[str, Any], last: int) -> Shape:
    """What the orders say of a model nobody knows; without them only the levels speak."""
    entry = next(iter(orders.values()), None)
    if entry is None:
        return {"units": last, "uses": 1, "layers": ()}
    whole = last // len(entry["order"]) if last % len(entry["order"]) == 0 else 1
    return {
        "units": sum(entry["layers"]),
        "uses": entry["uses"] or max(whole, 1),
        "layers": entry["layers"],
    }


def _orders(path: Path, raw: Any) -> dict[str, Any]:
    out = {}
    try:
        for strategy, entry in raw.items():
            heads, count = entry["heads"], int(entry["layers"])
            layers = [int(heads)] * count if isinstance(heads, int) else [int(h) for h in heads]
            order: list[Unit] = [(int(layer), int(head)) for layer, head in entry["order"]]
            if len(layers) != count or not order or len(set(order)) != len(order):
                raise ValueError(f"{strategy} names a unit twice, none, or not every layer")
            for layer, head in order:
                if not (0 <= layer < count and 0 <= head < layers[layer]):
                    raise ValueError(f"{strategy} removes unit {head} of layer {layer}")
            uses = int(entry["uses"]) if entry.get("uses") else None
            label = LABELS.get(strategy, strategy)
            out[label] = {"layers": layers, "uses": uses, "order": order}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EspalierError(
            f"{path} is damaged ({type(error).__name__}: {error}): expected "
            '{model: {strategy: {"layers": 12, "heads": 12, "order": [[layer, head], …]}}}'
        ) from None
    return out
