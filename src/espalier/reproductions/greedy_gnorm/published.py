"""The files of the Greedy-Gnorm repository, read and written: accuracy against heads pruned.

pruned_heads_accuracy(<MODEL>)basedon<METHOD>.csv    one curve
<MODEL>randompruned_heads_data_<trials>x<levels>_<group>.xlsx    trials of random removal
orders.json    the order in which heads were removed, where it is known
https://github.com/dionysus23334/Greedy-Gnorm
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from ...analysis.curves import ONE_SHOT, Curve
from ...analysis.record import MOST_UNITS
from ...analysis.results import Cost, Key, Results, Unit
from ...core.errors import FolderError, FormatError, UnsupportedError
from ...io.files import make_folder, read_json, reading, write_json
from ...io.paths import ORDERS, file_safe
from .. import recipe
from .accuracy_files import Accuracies, read_curve, read_trials, write_curve, write_trials

LABELS = {
    "GreedyGnorm": "gnorm",
    "InverseGreedyGnorm": "gnorm:reverse",
    "AE": "entropy",
    "AEinverse": "entropy:reverse",
}
ORDERS_FORM = '{model: {method: {"layers": 12, "heads": 12, "order": [[layer, head], …]}}}'
CURVE_FILE = re.compile(r"pruned_heads_accuracy\((?P<model>.+)\)basedon(?P<method>.+)\.csv")
TRIALS_FILE = re.compile(r"(?P<model>.+?)randompruned_heads_data_\d+x\d+_(?P<group>.+)\.xlsx")


@dataclass
class _Files:
    """The files of one model."""

    curves: dict[str, Path] = field(default_factory=dict)  # by method
    trials: dict[Path, str] = field(default_factory=dict)  # file -> its group
    orders: dict[str, _Order] = field(default_factory=dict)  # by method


@dataclass(frozen=True)
class Shape:
    """Physical layers and their heads. ALBERT has one layer, whose heads have twelve uses each."""

    layers: tuple[int, ...]  # heads per layer; () if unknown
    uses: int = 1
    parameters: int | None = None
    parameters_per_unit: int = 0
    count: int | None = None  # heads, where `layers` is unknown

    @property
    def units(self) -> int:
        return sum(self.layers) if self.count is None else self.count


class _Order(NamedTuple):
    layers: tuple[int, ...]
    uses: int | None
    units: list[Unit]


def is_published(path: Path) -> bool:
    """Whether a file has the name of a published curve or of published trials."""
    return bool(CURVE_FILE.fullmatch(path.name) or TRIALS_FILE.fullmatch(path.name))


def method_file(label: str) -> str:
    """Return a method as file names spell it: `gnorm-static` for gnorm:static, if it can be read back."""
    friendly = label.replace(":", "-")
    fits = quote(friendly, safe=" =") == friendly and method_label(friendly) == label
    return friendly if fits else file_safe(label).replace("-", "%2D")


def method_label(name: str) -> str:
    """Return the method that a file name spells."""
    return unquote(re.sub(r"-(?=(?:static|greedy|reverse|\w+=[^-]*)(?:-|$))", ":", name))


def read_published(
    source: str | Path | Iterable[Path], shape_of: Callable[[str], Shape | None] | None = None
) -> list[Results]:
    """Return one Results for each model in a folder of published files, or in these files."""
    if isinstance(source, str | Path):
        if not Path(source).is_dir():
            raise FolderError(f"there is no folder {source}", source)
        paths = sorted(Path(source).iterdir())
    else:
        paths = [Path(path) for path in source]
    found: dict[str, _Files] = {}
    for path in paths:
        if match := CURVE_FILE.fullmatch(path.name):
            method = method_label(match["method"])
            found.setdefault(unquote(match["model"]), _Files()).curves[LABELS.get(method, method)] = path
        elif match := TRIALS_FILE.fullmatch(path.name):
            found.setdefault(unquote(match["model"]), _Files()).trials[path] = match["group"]
    if not found:
        raise FolderError(
            "no published results: expected names like pruned_heads_accuracy(BERT)basedonGreedyGnorm.csv or "
            "BERTrandompruned_heads_data_50x25_1group.xlsx",
            source if isinstance(source, str | Path) else None,
        )
    for orders in {path.parent / ORDERS for path in paths}:
        for name, raw in read_json(orders).items() if orders.is_file() else ():
            if name in found:
                found[name].orders = _read_orders(orders, raw)
    return [_results(name, files, (shape_of or published_shape)(name)) for name, files in found.items()]


def write_published(results: Results, folder: str | Path) -> list[Path]:
    """Write the one-shot curves of a run as published files, and return the files."""
    if results.metric != "accuracy" or not results.counted:
        raise UnsupportedError(
            f"published files hold accuracies of models without some heads; {results.model} was measured by "
            f"{results.metric} without some {results.target}"
        )
    curves = {method: curve for (method, phase), curve in results.curves.items() if phase == ONE_SHOT}
    curves = {method: curves[method] for method in results.methods if method in curves}
    random = {method: curve for method, curve in curves.items() if curve.trials}
    if len({curve.removed for curve in random.values()}) > 1:
        raise UnsupportedError(
            f"{' and '.join(random)} have different levels; published files join all trials"
        )
    place, model = Path(folder), file_safe(results.model)
    names = _published_names(curves)
    written: list[Path] = []
    try:
        make_folder(place)
        for method, curve in curves.items():
            heads = tuple(results.count(removed) * results.uses for removed in curve.removed)
            if curve.trials:
                size, group = f"{len(curve.trials)}x{len(heads)}", list(random).index(method) + 1
                written.append(place / f"{model}randompruned_heads_data_{size}_{group}group.xlsx")
                write_trials(written[-1], Accuracies(heads, curve.trials))
            else:
                name = names.get(method) or method_file(method)
                written.append(place / f"pruned_heads_accuracy({model})basedon{name}.csv")
                write_curve(written[-1], Accuracies(heads, (curve.values,)))
    except OSError as error:
        raise FolderError(f"cannot write to {place}: {error.strerror}", place) from None
    orders = {method: order for method, order in results.orders.items() if method not in random}
    if orders:
        even = len(set(results.layers)) == 1
        shape = {
            "layers": len(results.layers),
            "heads": results.layers[0] if even else list(results.layers),
            "uses": results.uses,
        }
        written.append(place / ORDERS)
        known = read_json(written[-1]) if written[-1].exists() else {}
        known[results.model] = {
            names.get(method, method): {**shape, "order": [list(unit) for unit in order]}
            for method, order in orders.items()
        }
        write_json(written[-1], known)
    return written


def _published_names(methods: Iterable[str]) -> dict[str, str]:
    """Return the paper's name of each method, whatever its options: gnorm:pooling=batch is GreedyGnorm."""
    theirs = {label: name for name, label in LABELS.items()}
    out: dict[str, str] = {}
    for method in methods:
        name = theirs.get(":".join(word for word in method.split(":") if "=" not in word))
        if name and name not in out.values():
            out[method] = name
    return out


def _results(model: str, files: _Files, shape: Shape | None) -> Results:
    ordered = [method for method in (*LABELS.values(), *files.curves) if method in files.curves]
    found = {method: read_curve(files.curves[method]) for method in dict.fromkeys(ordered)}
    random = read_trials(files.trials)
    if random is not None:
        found[f"random:{len(random.trials)}"] = random
    levels = {heads for each in found.values() for heads in each.heads}
    shape = shape or _shape_by_orders(files.orders, max(levels))
    # Files count uses of heads; ours count heads, but files of the latter are read as well.
    per_unit = shape.uses if all(heads % shape.uses == 0 for heads in levels) else 1
    if max(levels) // per_unit > shape.units:
        path = next(iter([*files.curves.values(), *files.trials]))
        uses = f", each used {shape.uses} times" if shape.uses > 1 else ""
        raise FormatError(f"{path}: {max(levels)} heads pruned, but {model} has {shape.units}{uses}", path)
    for method, order in files.orders.items():
        if order.layers != shape.layers:
            raise FormatError(
                f"{ORDERS}: the order of {method} is for {len(order.layers)} layers with {sum(order.layers)} "
                f"heads; {model} has {len(shape.layers)} layers with {shape.units}"
            )
    curves: dict[Key, Curve] = {}
    costs: dict[Key, dict[float, Cost]] = {}
    for method, each in found.items():
        units = [heads // per_unit for heads in each.heads]
        removed = tuple(count / shape.units if count else 0.0 for count in units)
        single = Curve(removed, each.trials[0])
        curves[method, ONE_SHOT] = Curve.of_trials(removed, each.trials) if each is random else single
        if shape.parameters:
            costs[method, ONE_SHOT] = {
                fraction: Cost(shape.parameters - count * shape.parameters_per_unit)
                for fraction, count in zip(removed, units)
            }
    return Results(
        model=model,
        metric="accuracy",
        units=shape.units,
        layers=shape.layers,
        uses=shape.uses,
        curves=curves,
        orders={method: order.units for method, order in files.orders.items() if method in found},
        costs=costs,
        notes=("published files have no predictions, so there are no intervals",),
    )


def _shape_by_orders(orders: dict[str, _Order], last: int) -> Shape:
    """Return the shape of an unknown model from its orders, or from the last level alone."""
    order = next(iter(orders.values()), None)
    if order is None:
        return Shape((), count=last)
    whole = last // len(order.units) if last % len(order.units) == 0 else 1
    return Shape(order.layers, order.uses or max(whole, 1))


def _read_orders(path: Path, raw: Any) -> dict[str, _Order]:
    out = {}
    with reading(path, ORDERS_FORM, AttributeError, LookupError, TypeError):
        for method, entry in raw.items():
            heads, count, uses = entry["heads"], entry["layers"], entry.get("uses")
            units = [(layer, head) for layer, head in entry["order"]]
            whole = [*(heads if isinstance(heads, list) else [heads]), *(x for unit in units for x in unit)]
            if not all(type(x) is int and 0 <= x <= MOST_UNITS for x in (*whole, count, uses or 0)):
                raise ValueError(f"layers, heads and units of {method} must be whole numbers")
            layers = (
                tuple(heads) if isinstance(heads, list) else (heads,) * min(count, MOST_UNITS // (heads or 1))
            )
            wrong = any(layer >= len(layers) or head >= layers[layer] for layer, head in units)
            if len(layers) != count or not units or len(set(units)) != len(units) or wrong:
                raise ValueError(f"{method} has no units, repeated ones or some that the model does not have")
            out[LABELS.get(method, method)] = _Order(layers, uses or None, units)
    return out


def published_shape(name: str) -> Shape | None:
    """Return the size of a model by its name in the published files: BERT, ALBERT, …; None if unknown."""
    found = [recipe.load(each) for each in recipe.names()]
    return next((_count(one.name) for one in found if one.published and one.published.name == name), None)


@cache
def _count(recipe_name: str) -> Shape:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from ...architectures.sites import sites
    from ...evaluation.cost import parameters

    with torch.device("meta"):  # shapes only: no memory, no weights
        config = AutoConfig.for_model(**recipe.load(recipe_name).shape)
        model = AutoModelForSequenceClassification.from_config(config)
    heads = sites(model, "heads")
    return Shape(
        layers=tuple(site.units for site in heads),
        uses=heads[0].uses,
        parameters=parameters(model),
        parameters_per_unit=heads[0].parameters_per_unit(),
    )
