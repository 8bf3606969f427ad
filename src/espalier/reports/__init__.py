"""The report: tables and figures of results, made from files alone."""

from __future__ import annotations

import csv
import html
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..analysis.bootstrap import bootstraps
from ..analysis.curves import Tolerance
from ..analysis.results import Results
from ..analysis.summary import Row, at_points, by_level, measurements, pairs, summarize
from ..core.call import is_command
from ..core.errors import DataError, FolderError, InvalidValueError
from ..core.progress import OnProgress, Progress, ignore
from ..core.terminal import log
from ..io.files import make_folder, write_bytes
from ..io.paths import FIGURES, PAGE, SUMMARY, TABLES, WORKBOOK, file_safe
from ..io.spreadsheet import plain_cell, write_book
from . import captions, figures, style
from .figures._axes import known_axis
from .page import write_page
from .tables import (
    Table,
    brief_cells,
    escape,
    level_cells,
    pair_cells,
    point_cells,
    size_cells,
    summary_cells,
)
from .verdict import verdict

__all__ = ["Report", "Table"]
TOLERANCE = 0.01


class Report:
    """Tables and figures of some results. `sheets` holds the numbers, by sheet and row.

    `points` are solutions picked by hand, by model: a fraction removed, or an int that counts units.
    """

    def __init__(
        self,
        results: Sequence[Results],
        tolerance: Tolerance | None = None,
        points: Mapping[str, float] | None = None,
    ):
        self.results, self.points = rename_equal(results), dict(points or {})
        empty = [one.model for one in self.results if not one.keys]
        if empty or not results:
            raise DataError(f"{', '.join(empty) or 'no model'}: nothing was measured but the unpruned model")
        asked = [tolerance, *(one.tolerance for one in self.results), TOLERANCE]
        self.tolerance = next(one for one in asked if one is not None)
        self.sheets: dict[str, list[Row]] = {"rows": [], "summary": [], "by_level": [], "pairs": []}
        self.hidden: list[str] = []
        self.warnings: list[str] = []
        for one in self.results:
            boots = bootstraps(one)
            self.sheets["rows"] += measurements(one)
            self.sheets["summary"] += summarize(one, self.tolerance, boots)
            self.sheets["by_level"] += by_level(one, boots)
            self.sheets["pairs"] += pairs(one, boots)
            self.warnings += captions.at_chance(one, self.tolerance)
            self.hidden += captions.hidden(one, self.tolerance, boots, self.points.get(one.model))
        self.sheets["points"] = list(at_points(self.results, self.points, self.tolerance))

    def tables(self) -> list[Table]:
        """Return the tables for people: a summary, levels, sizes and pairs of each model; then the points."""
        out = []
        for one in self.results:
            rows = {x: [r for r in sheet if r["model"] == one.model] for x, sheet in self.sheets.items()}
            summary = [summary_cells(one, row) for row in rows["summary"]]
            out.append(Table(summary, one.model, captions.describe(one, self.tolerance)))
            out.append(Table(level_cells(one, rows["by_level"]), f"{one.model}: by level"))
            out.append(Table(size_cells(one, rows["by_level"]), f"{one.model}: sizes"))
            out.append(Table(pair_cells(one, rows["pairs"], self.tolerance), f"{one.model}: pairs"))
        return [table for table in [*out, self._points()] if table.rows]

    def brief(self) -> list[Table]:
        """Return one table of four columns for each model, and the points: what fits a terminal."""
        out = []
        for one in self.results:
            rows = [brief_cells(one, row) for row in self.sheets["summary"] if row["model"] == one.model]
            about = " on ".join(filter(None, (one.target, one.task)))
            title = one.model if about in one.model else f"{one.model}: {about}"
            out.append(Table(rows, title, self.verdict(one)))
        return [*out, self._points()] if self.points else out

    def _points(self) -> Table:
        known = {one.model: one for one in self.results}
        points = [point_cells(known[row["model"]], row) for row in self.sheets["points"]]
        return Table(points, "Points picked by hand")

    def verdict(self, results: Results) -> str:
        """Return one sentence about one run."""
        return verdict(results, self.sheets["summary"], self.tolerance)

    def notes(self) -> list[str]:
        """Return what the chosen points hide, and the notes of the runs."""
        notes = [f"{one.model}: {note}" for one in self.results for note in one.notes]
        return [*self.warnings, *self.hidden, *notes]

    def markdown(self) -> str:
        """Return all tables and notes as one page."""
        lines = [f"- {escape(line)}" for line in self.notes()]
        notes = ["### What the chosen points hide, and notes\n", "\n".join(lines) + "\n"] if lines else []
        return "\n".join([*(table.to_markdown() for table in self.tables()), *notes])

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{html.escape(line)}</li>" for line in self.notes())
        return "".join(table.to_html() for table in self.brief()) + f"<ul>{notes}</ul>"

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        notes = {one.model: list(one.notes) for one in self.results}
        return {
            "tolerance": self.tolerance,
            **self.sheets,
            "hidden": [*self.warnings, *self.hidden],
            "notes": notes,
        }

    def write(
        self,
        folder: str | Path,
        figures: bool = True,
        axis: str = "removed",
        on_progress: OnProgress = ignore,
    ) -> list[Path]:
        """Write `tables/`, `figures/` and the page into a folder, or the page alone into a file; return them.

        `axis` is what the curves are drawn against: removed, parameters, macs or latency.
        """
        place = Path(folder)
        if figures and place.suffix != ".html":
            self._check_axis(axis)
        try:
            if place.suffix == ".html":
                make_folder(place.parent)
                on_progress(Progress("writing the page"))
                return [write_page(self, place)]
            on_progress(Progress("writing tables"))
            written = list(self._write_tables(make_folder(place / TABLES)))
            if figures:
                written += self._write_figures(make_folder(place / FIGURES), axis, on_progress)
                on_progress(Progress("writing the page"))
                written.append(write_page(self, place / PAGE))
            return written
        except OSError as error:
            raise FolderError(f"cannot write the report to {place}: {error.strerror}", place) from None

    def _check_axis(self, axis: str) -> None:
        """Raise if no run has the cost that figures are to be drawn against; warn of those that have none."""
        lacking = [one.model for one in self.results if known_axis(one, axis) != axis]
        timed = "compare with `timed=True`" if not is_command() else "compare with --set timed=true"
        how = f": {timed}" if axis == "latency" else ""
        message = f"the run of {', '.join(lacking)} has no {axis} to draw against{how}"
        if len(lacking) == len(self.results):
            raise InvalidValueError(message, "axis")
        if lacking:
            log.warning("%s. It is drawn against what was removed", message)

    def _write_tables(self, place: Path) -> Iterator[Path]:
        sheets = {name: rows for name, rows in self.sheets.items() if rows}
        yield from (write_csv(place / f"{name}.csv", rows) for name, rows in sheets.items())
        write_book(place / WORKBOOK, {name: grid(rows) for name, rows in sheets.items()})
        write_bytes(place / SUMMARY, self.markdown().encode())
        yield from (place / WORKBOOK, place / SUMMARY)

    def _write_figures(self, place: Path, axis: str, on_progress: OnProgress) -> Iterator[Path]:
        names = figures.names()
        with style.matplotlib_settings():
            for number, name in enumerate(names):
                on_progress(Progress("drawing figures", number, len(names), name))
                figure = figures.load(name)
                each = getattr(figure, "PER_MODEL", False)
                chosen = {"axis": axis} if getattr(figure, "AXIS", False) else {}
                for some in [[one] for one in self.results] if each else [self.results]:
                    drawn = figure.draw(some, self.tolerance, self.points, **chosen)
                    if drawn is not None:
                        suffix = f"-{file_safe(some[0].model)[-80:]}" if each else ""
                        yield from style.save(drawn, place / f"{name}{suffix}")


def write_csv(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows as CSV; no cell is read as a formula."""
    lines = io.StringIO(newline="")
    csv.writer(lines, lineterminator="\n").writerows(map(plain_cell, row) for row in grid(rows))
    write_bytes(path, lines.getvalue().encode())
    return path


def grid(rows: Sequence[Row]) -> list[list[Any]]:
    """Return a header and the cells under it, without columns that are empty in every row."""
    named = dict.fromkeys(name for row in rows for name in row)
    columns = [name for name in named if any(row.get(name) is not None for row in rows)]
    return [columns, *([row.get(name) for name in columns] for row in rows)]


def rename_equal(results: Sequence[Results]) -> list[Results]:
    """Return the results with distinct names of models: by target and task, else by folder."""
    often = Counter(one.model for one in results)
    alike = Counter((one.model, one.target, one.task) for one in results)
    seen: Counter[str] = Counter()
    out = []
    for one in results:
        about = " on ".join(filter(None, (one.target, one.task)))
        name = about if alike[one.model, one.target, one.task] == 1 else one.source
        if often[one.model] > 1 and name and name != one.model:
            one = replace(one, model=f"{one.model} ({name})")
        seen[one.model] += 1
        again = seen[one.model]
        out.append(one if again == 1 else replace(one, model=f"{one.model} ({again})"))
    return out
