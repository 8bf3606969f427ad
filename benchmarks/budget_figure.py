"""All tables of benchmarks/budget.py in one picture: what a budget of MACs costs, model by model.

    python benchmarks/budget_figure.py

Reads results/budget/NAME.json and writes docs/figures/budgets.png. The band is the mean of the paired 95 %
intervals of ours. Lines leave the picture where more than `DEEPEST` points are lost.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parent / "results/budget"
FIGURE = Path(__file__).parents[1] / "docs/figures/budgets.png"
DEEPEST = 16
PANELS = {
    "minilm-l6-sst2-sst2_sentences": "MiniLM-L6, SST-2",
    "minilm-l6-qqp": "MiniLM-L6, QQP",
    "minilm-l6-mnli": "MiniLM-L6, MNLI",
    "e5-small-sst2": "e5-small, SST-2",
    "e5-small-mrpc": "e5-small, MRPC",
    "distilbert-sst2": "DistilBERT, SST-2",
    "mpnet-base-sst2": "MPNet-base, SST-2",
    "mpnet-base-mrpc": "MPNet-base, MRPC",
}
STYLES = {
    "ours": ("#0072B2", "o", "-"),
    "kprune": ("#009E73", "s", "--"),
    "kwon": ("#D55E00", "^", "--"),
    "kcm": ("#CC79A7", "v", "--"),
    "taylor": ("#E69F00", "D", ":"),
    "gnorm": ("#56B4E9", "P", ":"),
    "random": ("grey", "x", ":"),
}


def main() -> None:
    found = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in PANELS if there(name)}
    rows = -(-len(found) // 3)
    figure, axes = plt.subplots(
        rows, 3, figsize=(9.6, 2.7 * rows), sharex=True, sharey=True, layout="constrained"
    )
    for place, (name, table) in zip(axes.flat, found.items()):
        draw(place, table)
        place.set_title(PANELS[name], fontsize=9)
    for place in axes.flat[len(found) :]:
        place.set_axis_off()
    axes.flat[0].set_ylim(-DEEPEST, 1.5)
    figure.supxlabel("block MACs kept, %", fontsize=9)
    figure.supylabel("change of test accuracy, points", fontsize=9)
    handles = {label: line for place in axes.flat for line, label in zip(*place.get_legend_handles_labels())}
    ordered = [label for label in STYLES if label in handles]
    figure.legend(
        [handles[label] for label in ordered], ordered, loc="outside lower right", ncols=7, fontsize=8
    )
    figure.savefig(FIGURE, dpi=130)


def there(name: str) -> bool:
    return (RESULTS / f"{name}.json").exists()


def draw(place, table: list[dict]) -> None:
    place.axhline(0, color="black", lw=0.6)
    for contender, (colour, marker, line) in STYLES.items():
        own = sorted(
            (row for row in table if row["contender"] == contender), key=lambda row: row["block MACs"]
        )
        if not own:
            continue
        x = [100 * row["block MACs"] for row in own]
        style = dict(color=colour, marker=marker, markersize=3.5, lw=1.8 if contender == "ours" else 1)
        place.plot(x, [100 * row["change"] for row in own], line, label=contender, **style)
        if contender == "ours":
            low, high = zip(*(row["interval"] for row in own))
            place.fill_between(
                x, [100 * v for v in low], [100 * v for v in high], color=colour, alpha=0.15, lw=0
            )
    place.tick_params(labelsize=8)


if __name__ == "__main__":
    main()
