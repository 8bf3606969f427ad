"""All tables of benchmarks/budget.py in one picture and one page: what a budget of MACs costs each model.

    python benchmarks/budget_overview.py

Reads results/budget/NAME.json and writes docs/figures/budgets.png, results/budget/overview.md and the same
tables into docs/budgets.md, between the comments that name them. The band is
the mean of the paired 95 % intervals of ours. Lines leave the picture where more than `DEEPEST` points are
lost.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parent / "results/budget"
DOCS = Path(__file__).parents[1] / "docs"
FIGURE, PAGE = DOCS / "figures/budgets.png", DOCS / "budgets.md"
TABLES = {  # comment -> heading
    "overview": "Ours, with paired 95 % intervals",
    "others": "Beside others",
    "earlier": "Beside others, by the default of before",
}
SHARES = (0.75, 0.5, 0.33, 0.25, 0.15)
DEEPEST, WIDE = 16, 3
PANELS = {
    "minilm-l6-sst2-sst2_sentences": "MiniLM-L6, SST-2",
    "minilm-l6-qqp": "MiniLM-L6, QQP",
    "minilm-l6-mnli": "MiniLM-L6, MNLI",
    "e5-small-sst2": "e5-small, SST-2",
    "e5-small-mrpc": "e5-small, MRPC",
    "distilbert-sst2-sentences": "DistilBERT, SST-2",
    "mpnet-base-sst2": "MPNet-base, SST-2",
    "mpnet-base-mrpc": "MPNet-base, MRPC",
}
EARLIER = {  # of other tunings of these models, with the default that did not repair stages
    "earlier/minilm-l6-qqp": "MiniLM-L6, QQP",
    "earlier/minilm-l6-mnli": "MiniLM-L6, MNLI",
    "earlier/distilbert-sst2-sentences": "DistilBERT, SST-2",
    "earlier/mpnet-base-sst2": "MPNet-base, SST-2",
    "earlier/mpnet-base-mrpc": "MPNet-base, MRPC",
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
    rows = -(-len(found) // WIDE)
    figure, axes = plt.subplots(
        rows, WIDE, figsize=(10, 2.7 * rows + 0.4), sharex=True, sharey=True, layout="constrained"
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
        [handles[label] for label in ordered], ordered, loc="outside upper center", ncols=7, fontsize=8
    )
    figure.savefig(FIGURE, dpi=130)
    page = overview(found)
    (RESULTS / "overview.md").write_text(page)
    PAGE.write_text(filled(PAGE.read_text(), page))


def there(name: str) -> bool:
    return (RESULTS / f"{name}.json").exists()


def filled(text: str, page: str) -> str:
    """Return a text with the tables of a page put between the comments that name them."""
    for name, heading in TABLES.items():
        table = page.split(f"## {heading}\n\n")[1].split("\n\n")[0]
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end {name} -->")
        text = f"{before}{begin}{table}\n{end}{after}"
    return text


def overview(found: dict[str, list[dict]]) -> str:
    """Return the page: ours on every model, then every contender beside it."""
    shares = " | ".join(f"{share:.0%}" for share in SHARES)
    lines = [
        "# Budgets on every model",
        "",
        "Change of test accuracy in points at shares of the blocks' MACs that are kept, means over "
        "calibration seeds. `python benchmarks/budget_overview.py` reads it from the tables of "
        "`benchmarks/budget.py`, which have the test examples and the seconds of all rows.",
        "",
        "## Ours, with paired 95 % intervals",
        "",
        f"| model, task | unpruned | seeds | {shares} | choosing + repairing at 50 % |",
        "|---" * (len(SHARES) + 4) + "|",
    ]
    for name, table in found.items():
        own = {row["block MACs"]: row for row in table if row["contender"] == "ours"}
        cells = [with_interval(own[share]) if share in own else "" for share in SHARES]
        first, half = next(iter(own.values())), own[0.5]
        dense = f"{100 * (first['test'] - first['change']):.2f}"
        seconds = f"{half['choosing s']:.0f} + {half['repairing s']:.0f} s"
        seeds = sorted({row["seeds"] for row in own.values()})
        cells = [PANELS[name], dense, " to ".join(map(str, seeds)), *cells, seconds]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", f"## {TABLES['others']}", "", *beside(found, PANELS)]
    before = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in EARLIER if there(name)}
    lines += ["", f"## {TABLES['earlier']}", "", *beside(before, EARLIER)]
    lines += ["", "## Above ours by more than the interval", ""]
    lines.append("On the seeds that both have, points and their paired 95 % interval.")
    lines += ["", "| model, task | block MACs | method | above ours |", "|---|---|---|---|"]
    for name, table in (found | before).items():
        for row in table:
            gap = row["less ours"]
            if row["contender"] in STYLES and gap and gap[1] > 0:
                above = "{:+.2f} [{:+.2f}, {:+.2f}]".format(*(100 * x for x in gap))
                title = PANELS.get(name) or f"{EARLIER[name]} (earlier)"
                lines.append(f"| {title} | {row['block MACs']:.0%} | {row['contender']} | {above} |")
    return "\n".join(lines) + "\n"


def beside(found: dict[str, list[dict]], titles: dict[str, str]) -> list[str]:
    """Return the lines of a table of every contender on every model."""
    shares = " | ".join(f"{share:.0%}" for share in SHARES)
    lines = [f"| model, task | method | seeds | {shares} |", "|---" * (len(SHARES) + 3) + "|"]
    for name, table in found.items():
        for contender in STYLES:
            own = {row["block MACs"]: row for row in table if row["contender"] == contender}
            if own:
                cells = [f"{100 * own[s]['change']:+.2f}" if s in own else "" for s in SHARES]
                seeds = " to ".join(map(str, sorted({row["seeds"] for row in own.values()})))
                lines.append("| " + " | ".join([titles[name], contender, seeds, *cells]) + " |")
    return lines


def with_interval(row: dict) -> str:
    return "{:+.2f} [{:+.2f}, {:+.2f}]".format(*(100 * x for x in (row["change"], *row["interval"])))


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
