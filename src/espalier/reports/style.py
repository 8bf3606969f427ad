"""How the figures look: one size, one palette, one way to save. Nothing of it outlives a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..analysis.results import LOWER_IS_BETTER, Results
from ..core.errors import EspalierError
from . import captions, words

DPI = 160
WIDTH = 7.2  # inches: two columns of a page
CURVE = 2.55  # the height of a panel with curves
# Okabe and Ito's colours, which every kind of colour vision tells apart
COLOURS = {
    "gnorm": "#0072B2",
    "entropy": "#D55E00",
    "taylor": "#009E73",
    "magnitude": "#CC79A7",
}
OTHERS = ("#E69F00", "#56B4E9", "#882255", "#44AA99", "#117733", "#AA4499")
MARKERS = {"gnorm": "o", "entropy": "s", "taylor": "^", "magnitude": "D"}
OTHER_MARKERS = ("v", "P", "X", "<", ">", "*")
LINES = {"": "-", "reverse": (0, (1.2, 1.4)), "static": (0, (5, 1.8)), "greedy": (0, (5, 1.8))}
OTHER_LINES = ((0, (6, 1.5, 1, 1.5)), (0, (4, 1, 1, 1, 1, 1)), (0, (8, 2)))
GREY, DARK, LIGHT, UNKNOWN = "#555555", "#1F3A5F", "#D9E2EC", "#EDEDED"
SEQUENCE = "YlGnBu"  # light for what goes first, dark for what stays
SETTINGS = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "legend.fontsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "figure.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.linewidth": 0.4,
    "grid.color": "#E3E3E3",
    "axes.axisbelow": True,
    "pdf.fonttype": 42,
    "savefig.dpi": DPI,
}


@contextmanager
def look() -> Iterator[None]:
    """The defaults of matplotlib and ours over them; afterwards everything is as it was."""
    try:
        import matplotlib
    except ImportError:
        raise EspalierError("figures need matplotlib. Type: pip install 'espalier[report]'") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def panels(heights: Sequence[float], columns: int = 2) -> tuple[Any, list[Any]]:
    """A figure of panels so many inches tall, two side by side. Figure, not pyplot: no window, no state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(heights), columns)
    rows = [max(heights[i : i + columns]) for i in range(0, len(heights), columns)]
    width = WIDTH if columns > 1 else 5.2
    figure: Any = Figure(figsize=(width, sum(rows) + 0.15), layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.05)
    axes = figure.subplots(len(rows), columns, squeeze=False, height_ratios=rows).ravel()
    for spare in axes[len(heights) :]:
        spare.remove()
    return figure, list(axes[: len(heights)])


def save(figure: Any, path: Path) -> list[Path]:
    """As PNG and PDF, without the time of writing: the same results make the same bytes."""
    lay_out(figure)
    png, pdf = path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.pdf")
    figure.savefig(png, metadata={"Software": "espalier"})
    figure.savefig(pdf, metadata={"CreationDate": None, "Creator": "espalier"})
    return [png, pdf]


def lay_out(figure: Any) -> None:
    """Once for all files of it; the second time it knows how big the labels came out."""
    for _ in range(2):
        figure.draw_without_rendering()
    figure.set_layout_engine("none")


def text(name: str, longest: int = 44) -> str:
    """A name from outside: no formula between dollars, one line, not too long."""
    name = " ".join(name.split())
    if len(name) > longest:
        name = "…" + name[-longest:]
    return name.replace("\\", "\\\\").replace("$", r"\$") if "$" in name else name


def line(label: str, labels: Sequence[str]) -> dict[str, Any]:
    """Colour and marker say the criterion, the dashes say what was done with it."""
    name, _, variant = label.partition(":")
    unknown = [n for n in dict.fromkeys(x.partition(":")[0] for x in labels) if n not in COLOURS]
    rest = [v for v in dict.fromkeys(x.partition(":")[2] for x in labels) if v not in LINES]
    if name in COLOURS:
        colour, marker = COLOURS[name], MARKERS[name]
    else:
        place = unknown.index(name)
        colour, marker = OTHERS[place % len(OTHERS)], OTHER_MARKERS[place % len(OTHERS)]
    dashes = LINES[variant] if variant in LINES else OTHER_LINES[rest.index(variant) % len(OTHER_LINES)]
    return {
        "color": colour,
        "linestyle": dashes,
        "marker": marker,
        "markersize": 3.4,
        "markerfacecolor": "white" if variant else colour,
        "markeredgewidth": 0.9,
        "linewidth": 1.5 if label == "gnorm" else 1.15,
    }


def axis_of(axis: Any, results: Results) -> None:
    """The axes of a curve: what was removed, what was measured."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    times = f", each used {results.uses} times" if results.uses > 1 else ""
    axis.set_xlabel(f"{text(results.target)} removed, of {results.units}{times}")
    axis.set_ylabel(text(words.NAMES.get(results.metric, results.metric)))
    below = text(captions.under_title(results), longest=80)
    axis.set_title(text(results.model), pad=14 if below else None)
    axis.annotate(
        below,
        (0.5, 1),
        (0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=6.5,
        color=GREY,
    )
    axis.set_xlim(-0.015 * results.units, 1.015 * results.units)
    if results.units % 12 == 0:
        step = results.units // 12 * (1 if results.units <= 12 else 2)
        axis.set_xticks(range(0, results.units + 1, step))
    else:
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    if results.metric in words.SHARES:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.6g} %"))
    if results.metric in LOWER_IS_BETTER and _range(results) > 4:
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(axis="y")


def _range(results: Results) -> float:
    """How many times the least value the greatest is."""
    curves = [*results.curves.values(), *(c for t in results.trials.values() for c in t.curves)]
    values = [results.show(v) for curve in curves for v in curve.accuracy]
    return max(values) / min(values)


def scale_beside(axis: Any, mesh: Any, label: str = "") -> None:
    """A colour bar exactly as tall as the map it belongs to."""
    bar = axis.figure.colorbar(mesh, cax=axis.inset_axes((1.02, 0, 0.03, 1)))
    bar.outline.set_visible(False)
    bar.formatter.set_powerlimits((-3, 4))
    bar.ax.tick_params(labelsize=6, length=2)
    bar.ax.yaxis.get_offset_text().set_fontsize(6)
    bar.set_label(label, fontsize=6)


def legend_below(figure: Any, handles: dict[str, Any]) -> None:
    """One legend for all panels, in rows of equal length that are no wider than the figure."""
    names = list(handles)
    entry = 0.75 + 0.062 * max(map(len, names))  # inches: the line, the gap, the letters
    most = max(1, int(figure.get_figwidth() / entry))
    rows = -(-len(names) // most)
    columns = -(-len(names) // rows)
    figure.set_figheight(figure.get_figheight() + 0.17 * rows)  # room of its own
    figure.legend(
        [handles[name] for name in names],
        names,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=3.2,
        columnspacing=1.6,
    )
