"""Tables for people: few columns, none of them empty, numbers with their intervals."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..analysis.curves import Tolerance
from ..analysis.results import BASE_KEY, Key, Results
from ..analysis.summary import STRETCHES, Row
from ..core.terminal import visible
from . import text

Cells = dict[str, str]
SHOWN = 4  # levels that a table has room for


@dataclass
class Table:
    """Rows of text under the names of their columns; a column that is empty in every row is left out.

    Sequences that a terminal would obey are shown, not sent.
    """

    rows: list[Cells]
    title: str = ""
    caption: str = ""
    columns: list[str] = field(init=False)

    def __post_init__(self) -> None:
        named = dict.fromkeys(name for row in self.rows for name in row)
        filled = [name for name in named if any(row.get(name) for row in self.rows)]
        self.columns = [*map(_cell, filled)]
        self.rows = [{_cell(name): _cell(row.get(name, "")) for name in filled} for row in self.rows]
        self.title, self.caption = _cell(self.title), _cell(self.caption)

    def to_text(self) -> str:
        """Return the table for a terminal, columns aligned."""
        lines = [self.columns, *(list(row.values()) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines)]
        shown = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines]
        shown[1:1] = ["  ".join("─" * w for w in widths)]
        return "\n".join(filter(None, [self.title, *shown, self.caption]))

    def to_markdown(self) -> str:
        """Return the table in Markdown; no text can break out of its cell."""
        lines = [self.columns, ["---"] * len(self.columns), *(list(row.values()) for row in self.rows)]
        shown = [f"| {' | '.join(map(escape, line))} |" for line in lines]
        shown[1] = "|" + "---|" * len(self.columns)
        title, caption = (escape(part) for part in (self.title, self.caption))
        parts = [title and f"### {title}", "\n".join(shown), caption and f"{caption}."]
        return "\n\n".join(filter(None, parts)) + "\n"

    def to_html(self) -> str:
        """Return the table in HTML, everything escaped."""

        def line(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(line(row.values(), "td") for row in self.rows)
        title, caption = html.escape(self.title), html.escape(self.caption)
        head = f"<thead>{line(self.columns, 'th')}</thead>"
        shown = f"<table>{f'<caption>{title}</caption>' * bool(title)}{head}<tbody>{body}</tbody></table>"
        return shown + f"<p>{caption}</p>" * bool(caption)

    _repr_html_ = to_html
    __str__ = to_text


def _cell(text: object) -> str:
    return visible(str(text), lines=False)


def escape(line: str) -> str:
    """Return text for one line of Markdown: no table, no markup, no tag, no link."""
    line = re.sub(r"([\\`*|<>])", r"\\\1", visible(" ".join(line.split())))
    return line.replace("](", "]\\(")


def summary_cells(results: Results, row: Row, brief: bool = False) -> Cells:
    """Return a row of the summary; `brief` fits a terminal."""
    metric = row["metric"]

    def ends(name: str, show: Callable[[str, float | None], str]) -> str:
        return text.interval(*(show(metric, row.get(f"{name} {end}")) for end in ("low", "high")))

    def value(name: str) -> str:
        shown = _bare(metric, row.get(name))
        if brief or not shown:
            return shown
        low, high = (row.get(f"{name} {end}") for end in ("lowest", "highest"))
        trials = sorted((low, high)) if low is not None and high is not None else []
        spread = f" ({'–'.join(_bare(metric, end) for end in trials)})" if trials else ""
        return shown + ends(name, _bare) + spread

    def change(name: str) -> str:
        shown = text.difference(metric, row.get(name))
        return shown and shown + ends(name, text.difference)

    def part(name: str) -> str:
        return "" if row.get(name) is None else f"{row[name]}/{row['levels shared']}"

    def before_after(name: str, show: Callable[[float], str]) -> str:
        numbers = [row.get(f"{name} {when}") for when in ("before", "after")]
        return text.arrow(*("" if number is None else show(number) for number in numbers))

    reached = [row["removed"], *(row[f"removed within {p}"] for p in STRETCHES)]
    chosen, *stretches = (text.reached(results, x, row["measured to"]) for x in reached)
    model = row["compression of model"] if row["removed"] else None
    out = {
        "method": row["method"],
        "phase": row["phase"] if len(results.phases) > 1 else "",
        "removed": chosen + text.of_units(results),
        "validation": value("validation"),
        "test": text.arrow(_bare(metric, row.get("test before")), value("test after")),
        "test change": change("test change"),
        "parameters": "" if not results.counted else before_after("parameters", lambda n: f"{n / 1e6:.2f}M"),
        "MiB": before_after("megabytes", lambda n: f"{n:.2f}"),
        "whole model": "" if model is None else text.times(model),
        "collapse": "" if row["collapse"] is None else text.level(results, row["collapse"]),
        "area": value("area"),
        f"removed within {'/'.join(map(str, STRETCHES))}": "/".join(stretches),
        "area − random": change("area over random"),
        "above random": part("levels above random mean"),
        "above all trials": part("levels above all trials"),
        "below all trials": part("levels below all trials"),
    }
    left_out = {"parameters", "above all trials", "below all trials"} if brief else set()
    return {name: cell for name, cell in out.items() if name not in left_out}


def brief_cells(results: Results, row: Row) -> Cells:
    """Return a row of four columns: the method, what it removes, the change on test data, what is left."""
    cells, removed = summary_cells(results, row), bool(row["removed"])
    split = "test" if results.test else "validation"
    change = tested_change(results, row)
    if not results.test:
        curve = results.curves[row["method"], row["phase"]]
        change = text.change(row["metric"], (curve.at(row["removed"]) - curve.base, None, None))
    saves = {"MACs": "macs", "MiB": "megabytes"}
    saved = next(
        (x for x in saves if row[f"{saves[x]} before"] and row[f"{saves[x]} after"] is not None), "MiB"
    )
    before, now = (row[f"{saves[saved]} {when}"] for when in ("before", "after"))
    return {
        "method": text.name(results, (row["method"], row["phase"])),
        "removed": cells["removed"],
        f"change of {split} {results.metric}": change if removed else "",
        f"{saved} left": f"{100 * now / before:.0f} %" if before and removed else "",
    }


def tested_change(results: Results, row: Row) -> str:
    """Return the change on test data of a row of the summary, with its interval."""
    found = [row.get(f"test change{end}") for end in ("", " low", " high")]
    return text.change(results.metric, found, results.examples.get("test"))


def _bare(metric: str, number: float | None) -> str:
    return text.value(metric, number, unit=False)


def shown_levels(results: Results) -> list[float]:
    """Return all levels if they are few; else some of the tens of percent, or of those all methods have."""
    found = results.levels
    if len(found) <= SHOWN:
        return found
    tens = [x for x in found if round(1000 * x) % 100 == 0]
    common = [x for x in found if all(results.curves[key].find(x) is not None for key in results.keys)]
    some = (common if results.counted else tens) or found
    return sorted({some[max(0, round((i + 1) * len(some) / SHOWN) - 1)] for i in range(SHOWN)})


def level_cells(results: Results, rows: Iterable[Row], brief: bool = False) -> list[Cells]:
    """Return methods down and levels across."""
    levels = shown_levels(results)
    out: dict[Key, Cells] = {}
    for row in rows:
        key = (row["method"], row["phase"])
        if key not in results.keys:
            continue
        phase = row["phase"] if len(results.phases) > 1 else ""
        across = {column(results, x): "" for x in levels}
        cells = out.setdefault(key, {"method": key[0], "phase": phase, **across})
        if row["removed"] in levels:
            ends = (_bare(row["metric"], row[f"value {end}"]) for end in ("low", "high"))
            shown = _bare(row["metric"], row["value"]) + ("" if brief else text.interval(*ends))
            cells[column(results, row["removed"])] = shown + (" collapsed" if row["collapsed"] else "")
    return list(out.values())


def column(results: Results, removed: float) -> str:
    """Return the name of the column of a level."""
    return text.level(results, removed) + (" removed" if results.counted else "")


def size_cells(results: Results, rows: Iterable[Row]) -> list[Cells]:
    """Return sizes at each shown level, of the first method: others differ by rounding only."""
    levels, out = shown_levels(results), []
    first, base = next(iter(results.keys)), results.cost(BASE_KEY, 0.0)
    for row in rows:
        cost = results.cost(first, row["removed"])
        if (row["method"], row["phase"]) != first or row["removed"] not in levels or cost.parameters is None:
            continue
        smaller = {x: text.times(row[f"compression of {x}"]) for x in ("matrices", "model", "file")}
        sizes = [base.dense_megabytes, cost.megabytes]
        out.append(
            {
                "removed": text.level(results, row["removed"]) + text.of_units(results),
                "pruned matrices": "" if cost.weights is None else smaller["matrices"],
                "whole model": smaller["model"],
                "file": "" if cost.dense_bytes is None else smaller["file"],
                "MiB": text.arrow(*("" if size is None else f"{size:.1f}" for size in sizes)),
                "MACs": "" if cost.macs is None else f"{cost.macs / 1e6:,.0f}M",
            }
        )
    return out


def pair_cells(results: Results, rows: Iterable[Row], tolerance: Tolerance) -> list[Cells]:
    """Return pairs down: the area, then all levels if they are few, else the level that `a` may lose."""
    levels, few = shown_levels(results), len(results.levels) <= SHOWN
    out: dict[tuple[Key, Key], Cells] = {}
    for row in rows:
        a, b, metric = (row["a"], row["phase of a"]), (row["b"], row["phase of b"]), results.metric
        numbers = [text.difference(metric, row[name]) for name in ("difference", "low", "high")]
        shown = numbers[0] + text.interval(*numbers[1:])
        if row["removed"] is None:
            names = f"{text.name(results, a)} − {text.name(results, b)}"
            above = f"{row['levels a above']}, {row['levels b above']} of {row['levels']}"
            verdict = row["verdict"] if row["low"] is not None else ""
            across = {column(results, x): "" for x in levels} if few else {"at one level": ""}
            area = {"a − b": names, "area": shown, "a above, b above": above}
            out[a, b] = {**area, **across, "by area": verdict}
        elif few and row["removed"] in levels:
            out[a, b][column(results, row["removed"])] = shown
        elif not few and row["removed"] <= results.curves[a].within(tolerance):
            out[a, b]["at one level"] = f"{shown} at {text.level(results, row['removed'])}"
    return list(out.values())


def point_cells(results: Results, row: Row) -> Cells:
    """Return a solution picked by hand, and how much the rule removes."""
    cells = summary_cells(results, row, brief=True)
    sizes = [row["megabytes before"], row["megabytes after"]]
    return {
        "model": row["model"],
        **{name: cells[name] for name in ("method", "phase", "removed")},
        "validation": text.arrow(_bare(row["metric"], row["base"]), cells["validation"]),
        "MiB": cells["MiB"],
        "relative": text.percent_change(row["relative change"]),
        "MiB relative": "" if None in sizes else text.percent_change(sizes[1] / sizes[0] - 1),
        "the rule removes": text.reached(results, row["rule removes"], row["measured to"]),
    }
