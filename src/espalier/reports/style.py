"""How figures look: sizes, colours, saving. Nothing of it outlives a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.curves import GRADUAL, ONE_SHOT, RECOVERED
from ..core.errors import DependencyError
from ..io.files import write_file

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes as Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure as Figure

WIDTH = 7.2  # inches: two columns of a page
# Okabe and Ito's colours, which all kinds of colour vision distinguish, and Tol's
PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#882255", "#44AA99", "#117733", "#AA4499"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
DASHES: tuple[Any, ...] = (
    *((0, (5, 1.8)), (0, (1.2, 1.4)), (0, (6, 1.5, 1, 1.5))),
    *((0, (4, 1, 1, 1, 1, 1)), (0, (8, 2))),
)
PHASE_DASHES: dict[str, Any] = {ONE_SHOT: "-", RECOVERED: (0, (4, 1.6)), GRADUAL: (0, (5, 1.4, 1, 1.4))}
GREY, DARK, LIGHT, UNKNOWN = "#555555", "#1F3A5F", "#D9E2EC", "#EDEDED"
SEQUENCE = "YlGnBu"  # light for what is removed first, dark for what is kept longest
SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("font.size", "axes.labelsize", "legend.fontsize"), 8),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 7),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    "axes.titlesize": 9,
    "figure.titlesize": 10,
    "axes.axisbelow": True,
    "pdf.fonttype": 42,
    "grid.linewidth": 0.4,
    "grid.color": "#E3E3E3",
    "savefig.dpi": 160,
}


@contextmanager
def matplotlib_settings() -> Iterator[None]:
    """Use matplotlib's defaults with ours on top; restore the user's settings afterwards."""
    try:
        import matplotlib
    except ImportError:
        raise DependencyError("matplotlib", "report", "drawing figures") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def panels(heights: Sequence[float], columns: int = 2) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels of these heights in inches, two in a row. It is not known to pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(heights), columns)
    rows = [max(heights[i : i + columns]) for i in range(0, len(heights), columns)]
    width = WIDTH if columns > 1 else 5.2
    figure = Figure(figsize=(width, sum(rows) + 0.15))
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.05)
    axes = figure.subplots(len(rows), columns, squeeze=False, height_ratios=rows).ravel()
    for spare in axes[len(heights) :]:
        spare.remove()
    return figure, list(axes[: len(heights)])


def save(figure: Figure, path: Path) -> list[Path]:
    """Write PNG and PDF without the time of writing: the same results make the same bytes."""
    lay_out(figure)
    png, pdf = (path.with_name(f"{path.name}.{kind}") for kind in ("png", "pdf"))
    about = {png: {"Software": "espalier"}, pdf: {"CreationDate": None, "Creator": "espalier"}}
    for target, metadata in about.items():
        with write_file(target) as place:
            figure.savefig(place, format=target.suffix[1:], metadata=metadata)
    return [png, pdf]


def stem(path: str | Path) -> Path:
    """Return the path of a figure without the ending of one of its files."""
    path = Path(path)
    return path.with_suffix("") if path.suffix in (".png", ".pdf") else path


def lay_out(figure: Figure) -> None:
    """Place everything once for all files of a figure; the second pass knows the sizes of the labels."""
    for _ in range(2):
        figure.draw_without_rendering()
    figure.set_layout_engine("none")


def plain(name: str, longest: int = 44) -> str:
    """Return a name from outside as one line that is not too long and holds no formula."""
    name = " ".join(name.split())
    if len(name) > longest:
        name = "…" + name[-longest:]
    return name.replace("\\", "\\\\").replace("$", r"\$") if "$" in name else name


def lines(
    methods: Sequence[str], settings: Mapping[str, Mapping[str, Any]], by_phase: bool = False
) -> dict[str, dict[str, Any]]:
    """Return how each method is drawn: criterion as colour and marker, options as dashes and hollow markers.

    With `by_phase` dashes are left to the phases and every method has its own colour. Colours and markers
    that a file names are used if there are such.
    """
    from matplotlib.colors import is_color_like
    from matplotlib.lines import Line2D

    names = {m: (settings.get(m) or {}).get("criterion") or m.partition(":")[0] for m in methods}
    groups = {method: method if by_phase else names[method] for method in methods}
    chosen: dict[str, tuple[str, str]] = {}
    for method in methods:
        own = settings.get(method) or {}
        if is_color_like(own.get("colour")) and (method == names[method] or not by_phase):
            marker = own.get("marker") if own.get("marker") in Line2D.markers else "o"
            chosen.setdefault(groups[method], (own["colour"], str(marker)))
    for group in groups.values():
        if group not in chosen:
            used = {colour for colour, _ in chosen.values()}
            free = [i for i, colour in enumerate(PALETTE) if colour not in used]
            at = free[0] if free else len(chosen) % len(PALETTE)
            chosen[group] = (PALETTE[at], MARKERS[at])
    variants = list(dict.fromkeys(m.partition(":")[2] for m in methods if m != groups[m]))
    out = {}
    for method in methods:
        colour, marker = chosen[groups[method]]
        varied = method != groups[method]
        dashes = DASHES[variants.index(method.partition(":")[2]) % len(DASHES)] if varied else "-"
        out[method] = {
            "color": colour,
            "linestyle": dashes,
            "marker": marker,
            "markersize": 3.4,
            "markerfacecolor": "white" if varied else colour,
            "markeredgewidth": 0.9,
            "linewidth": 1.2,
        }
    return out


def base_line(axis: Axes, height: float) -> Artist:
    """Draw the unpruned model across a panel."""
    return axis.axhline(height, color="black", linewidth=0.7, linestyle=(0, (4, 3)), zorder=1)


def colour_bar(axis: Axes, mesh: ScalarMappable, label: str = "") -> None:
    """Draw a colour bar as tall as the map it belongs to."""
    bar = axis.figure.colorbar(mesh, cax=axis.inset_axes((1.02, 0, 0.03, 1)))
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.formatter.set_powerlimits((-3, 4))  # type: ignore[attr-defined]
    bar.ax.tick_params(labelsize=6, length=2)
    bar.ax.yaxis.get_offset_text().set_fontsize(6)
    bar.set_label(label, fontsize=6)


def legend_below(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Draw one legend for all panels, in rows of equal length that are no wider than the figure."""
    entry = 0.75 + 0.062 * max(map(len, handles))  # inches: the line, the gap, the letters
    most = max(1, int(figure.get_figwidth() / entry))
    rows = -(-len(handles) // most)
    figure.set_figheight(figure.get_figheight() + 0.17 * rows)
    spaces = {"handlelength": 3.2, "columnspacing": 1.6, "ncols": -(-len(handles) // rows)}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", frameon=False, **spaces)
