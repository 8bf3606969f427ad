"""What a model costs, layer by layer and in total, before and after a plan, and what a target can save."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from ..architectures.table import position_limit
from ..core.errors import InvalidValueError
from ..core.mask import Plan
from ..evaluation.cost import parameters, short
from ..evaluation.layer_costs import LayerCost, list_costs, tokens_of
from ..experiment.model import short_name
from ..experiment.verb import verb
from ..io.paths import PLAN
from ..pruning.cut import cut
from ..storage.resolve import outline
from . import style
from .outcome import Outcome
from .tables import Table

MIB = 2**20
# What a target can take away at most: the rows it empties.
TARGETS = {"heads": ("heads",), "neurons": ("neurons",), "layers": ("heads", "neurons")}


@verb
def costs(
    model: Any,
    *,
    max_length: int = 128,
    batch_size: int = 1,
    plan: str | Path | Plan | None = None,
    figure: str | Path | None = None,
    trust_remote_code: bool = False,
) -> Outcome:
    """Count MACs, parameters and storage of a model without its weights, also after a `plan`.

    `model` is a name, a folder, a config file, a model type or a live model; `plan` a Plan, its file or its
    folder. `figure` is a file to draw the layers into.

    >>> espalier.costs("google-bert/bert-base-uncased", max_length=128, plan="small/plan.json")
    """
    live = not isinstance(model, (str, Path))
    found = model if live else outline(str(model), trust_remote_code=trust_remote_code)
    name = type(model).__name__ if live else short_name(str(model))
    limit = position_limit(found)
    if limit is not None and max_length > limit:
        raise InvalidValueError(
            f"`max_length` is {max_length}, but {name} has positions for {limit} tokens", "max_length"
        )
    tokens, width = tokens_of(found, max_length), found.dtype.itemsize
    how: Any = dict(tokens=tokens, batch_size=batch_size)
    before = list_costs(found, **how)
    after = None
    if plan is not None:
        smaller = cut(copy.deepcopy(found), _plan_of(plan), report=False)
        after = list_costs(smaller, **how)
    facts = {
        "model": name,
        **how,
        "bytes_per_number": width,
        "parameters": parameters(found),
        "layers": [asdict(row) for row in before],
        "after": None if after is None else [asdict(row) for row in after],
        "most": most_saved(found, before, tokens),
        **{key: sum(getattr(row, key) or 0 for row in before) for key in ("macs", "zeros")},
        "counted": all(row.macs is not None for row in before),
    }
    tables = [_layers_table(facts, before, after, width), _most_table(facts)]
    notes = []
    if figure is not None:
        with style.matplotlib_settings():
            files = style.save(_draw(before, after), style.stem(figure))
        notes = [f"The figure is in {path}." for path in files]
    return Outcome(facts, tables, notes)


def most_saved(model: Any, rows: Sequence[LayerCost], tokens: int) -> list[dict[str, Any]]:
    """Return what removing all of a target would save: MACs and parameters, of the whole model."""
    blocks = [row for row in rows if row.target]
    inner = sum(row.macs or 0 for row in blocks)
    maps = sum(row.maps for row in blocks)
    out = []
    for target, kinds in TARGETS.items():
        chosen = [row for row in blocks if row.target in kinds]
        saved = {"macs": sum(row.macs or 0 for row in chosen)}
        out.append({"target": target, **saved, "parameters": sum(row.parameters for row in chosen)})
    weights = {"macs": inner - maps, "parameters": sum(row.parameters for row in blocks)}
    words = {id(p): p.numel() for table in _word_tables(model) for p in table.parameters()}
    predicted = model.get_output_embeddings() is not None  # a head that multiplies by every word
    head = sum(row.macs or 0 for row in rows if not row.target) if predicted else 0
    # One token of n is left after the first attention: all but the first layer's heads is divided by n.
    first = next((row.macs or 0 for row in blocks if row.target == "heads"), 0)
    fewer = round((inner - first) * (1 - 1 / tokens))
    out.append({"target": "weights", **weights})
    out.append({"target": "vocabulary", "macs": head, "parameters": sum(words.values())})
    return [*out, {"target": "tokens", "macs": fewer, "parameters": 0}]


def _word_tables(model: Any) -> list[nn.Module]:
    tables = (model.get_input_embeddings(), model.get_output_embeddings())
    return [one for one in tables if isinstance(one, (nn.Embedding, nn.Linear))]


def _plan_of(plan: str | Path | Plan) -> Plan:
    if isinstance(plan, Plan):
        return plan
    path = Path(plan)
    return Plan.load(path / PLAN if path.is_dir() else path)


def _layers_table(
    facts: dict[str, Any], before: Sequence[LayerCost], after: Sequence[LayerCost] | None, width: int
) -> Table:
    whole = sum(row.macs or 0 for row in before)
    rows, later = [], after or before
    left = {row.name: row for row in later}
    pairs = [(old, left.get(old.name) or _gone(old)) for old in before]
    for old, new in [*pairs, (_sum(before), _sum(later))]:
        rows.append(
            {
                "layer": old.name,
                "units": _pair(old.units, new.units) if old.units else "",
                "parameters": _pair(old.parameters, new.parameters),
                "MACs": "?" if old.macs is None or new.macs is None else _pair(old.macs, new.macs),
                "share": f"{100 * (new.macs or 0) / whole:.1f} %" if whole else "",
                "maps": _pair(old.maps, new.maps) if old.maps else "",
                "zero": short(new.zeros) if new.zeros else "",
                "MiB": f"{new.parameters * width / MIB:.2f}",
                "MiB read": f"{new.activations * width / MIB:.3f}",
            }
        )
    about = f"batch {facts['batch_size']}, {facts['tokens']} tokens, {width} bytes a number"
    legend = "share: of all MACs; maps: MACs of attention maps, which have no weights; "
    legend += "MiB: of weights, and the most that one operation reads and writes, gone when it has run"
    if any(row["zero"] for row in rows):
        legend += "; zero: MACs with zero weights"
    else:
        rows = [{name: cell for name, cell in row.items() if name != "zero"} for row in rows]
    unknown = "" if facts["counted"] else "; ?: seen only when the model runs"
    return Table(rows, caption=f"{facts['model']}: {about}; {legend}{unknown}")


def _gone(row: LayerCost) -> LayerCost:
    """Return the cost of a layer that was removed."""
    numbers = [f.name for f in fields(row) if isinstance(getattr(row, f.name), int | float)]
    nothing: Any = dict.fromkeys(numbers, 0)
    return replace(row, **nothing)


def _sum(rows: Sequence[LayerCost]) -> LayerCost:
    sums = {
        name: sum(getattr(row, name) or 0 for row in rows) for name in ("parameters", "macs", "maps", "zeros")
    }
    return LayerCost("total", "", 0, activations=max(row.activations for row in rows), **sums)


def _pair(before: int, after: int) -> str:
    return short(before) if before == after else f"{short(before)} → {short(after)}"


def _most_table(facts: dict[str, Any]) -> Table:
    whole = {"macs": facts["macs"], "parameters": facts["parameters"]}
    rows = []
    for one in facts["most"]:
        shares = {f"of the {k}": f"{100 * one[k] / n:.1f} %" if n else "" for k, n in whole.items()}
        rows.append({"target": one["target"], **shares})
    title = "What a target can save at most"
    return Table(rows, title=title, caption="tokens: all but one leave after the first attention")


def _draw(before: Sequence[LayerCost], after: Sequence[LayerCost] | None) -> style.Figure:
    """Draw the MACs of every layer as bars: projections, attention maps, neurons, what lies outside."""
    kinds = {"projections": style.PALETTE[0], "attention maps": style.PALETTE[5]}
    kinds |= {"neurons": style.PALETTE[1], "outside the blocks": style.GREY}
    sets = {"as it is": before} if after is None else {"before": before, "after the plan": after}
    figure, axes = style.panels([2.4] * len(sets), columns=1)
    highest = 0.0
    for axis, (title, rows) in zip(axes, sets.items()):
        stacks: dict[str, dict[str, float]] = {}
        for row in rows:
            layer = row.name.rpartition("/")[0].rpartition(".")[2] or row.name
            name = row.name.rpartition("/")[0] or ""
            bar = stacks.setdefault(f"{name}\0{layer}" if name else f"\0{row.name.partition(' ')[0]}", {})
            macs = (row.macs or 0) - row.maps
            kind = {"heads": "projections", "neurons": "neurons"}.get(row.target, "outside the blocks")
            bar[kind] = bar.get(kind, 0) + macs
            if row.maps:
                bar["attention maps"] = bar.get("attention maps", 0) + row.maps
        shown = {key: bar for key, bar in stacks.items() if key[0] != "\0" or any(bar.values())}
        low = [0.0] * len(shown)
        for kind, colour in kinds.items():
            values = [bar.get(kind, 0) / 1e6 for bar in shown.values()]
            axis.bar(range(len(shown)), values, bottom=low, color=colour, label=kind, width=0.8)
            low = [a + b for a, b in zip(low, values)]
        highest = max([highest, *low])
        axis.set_xticks(range(len(shown)), [style.plain(key.partition("\0")[2]) for key in shown])
        axis.set_ylabel("million MACs")
        axis.set_title(f"{title}: {short(sum(row.macs or 0 for row in rows))} MACs")
        axis.grid(axis="y")
    for axis in axes:
        axis.set_ylim(0, 1.05 * highest or 1)
    axes[-1].set_xlabel("layer")
    handles, labels = axes[0].get_legend_handles_labels()
    style.legend_below(figure, dict(zip(labels, handles)))
    return figure
