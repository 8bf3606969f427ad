"""The report: tables and figures of what was found, made from files alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..analysis.bootstrap import bootstraps
from ..analysis.results import Results
from ..analysis.summary import Boots, Row, at_points, by_level, comparisons, summary
from ..core.errors import EspalierError
from ..reproductions.greedy_gnorm.published import file_safe
from . import captions, hidden, style, tables
from .figures import boxes, curves, heat, masks, order, pooling


class Report:
    """All that is said about some results, computed once."""

    def __init__(
        self,
        results: Sequence[Results],
        within: float = 0.01,
        points: Mapping[str, int] | None = None,
    ):
        self.results, self.within, self.points = distinct(results), within, dict(points or {})
        for one in self.results:
            if not one.labels:
                raise EspalierError(f"{one.model}: nothing was measured beyond the unpruned model")
        boots: list[Boots] = [bootstraps(one) for one in self.results]
        self.solutions = at_points(self.results, self.points, within)
        self.summaries = [summary(r, within, b) for r, b in zip(self.results, boots)]
        self.levels = [by_level(r) for r in self.results]
        self.pairs = [comparisons(r, within, b) for r, b in zip(self.results, boots)]
        self.hides = [
            line
            for r, b in zip(self.results, boots)
            for line in hidden.hidden(r, within, self.points.get(r.model), b)
        ]

    def write(self, folder: str | Path, figures: bool = True) -> list[Path]:
        """Write `tables/` and `figures/`; a figure with nothing to show is not made."""
        place = Path(folder)
        try:
            (place / "tables").mkdir(parents=True, exist_ok=True)
            written = list(self._tables(place / "tables"))
            if figures:
                (place / "figures").mkdir(exist_ok=True)
                written += self._figures(place / "figures")
            return written
        except OSError as error:
            raise EspalierError(
                f"cannot write the report to {place}: {error.strerror}. Choose another folder with -o"
            ) from None

    def _tables(self, place: Path) -> Iterator[Path]:
        sheets: dict[str, list[Row]] = {
            "rows": [row for r in self.results for row in tables.tidy(r)],
            "summary": _joined(self.summaries),
            "by level": _joined(self.levels),
            "comparisons": _joined(self.pairs),
            "points": self.solutions,
        }
        for name, rows in sheets.items():
            if rows:
                yield tables.write_csv(place / f"{name.replace(' ', '_')}.csv", rows)
        yield tables.write_xlsx(place / "report.xlsx", sheets)
        page = place / "summary.md"
        page.write_text(self.markdown(), encoding="utf-8")
        yield page

    def _figures(self, place: Path) -> Iterator[Path]:
        with style.look():
            drawn: dict[str, Any] = {
                "curves": curves.draw(self.results, self.within, self.points),
                "boxes": boxes.draw(self.results),
                "masks": masks.draw(self.results, self.within, self.points),
            }
            for one in self.results:
                name = file_safe(one.model)[-80:]
                drawn[f"heat-{name}"] = heat.draw(one)
                drawn[f"order-{name}"] = order.draw(one)
                drawn[f"pooling-{name}"] = pooling.draw(one)
            for name, figure in drawn.items():
                if figure is not None:
                    yield from style.save(figure, place / name)

    def dict(self) -> dict[str, Any]:
        """The same as plain data."""
        each = zip(self.results, self.summaries, self.levels, self.pairs)
        models = [
            {
                "model": r.model,
                "summary": s,
                "by level": v,
                "comparisons": c,
                "notes": list(r.notes),
            }
            for r, s, v, c in each
        ]
        return {"models": models, "points": self.solutions, "hides": self.hides}

    def markdown(self) -> str:
        """The whole story on one page."""
        parts = []
        for one, rows, pairs in zip(self.results, self.summaries, self.pairs):
            parts += [f"## {tables.escaped(one.model)}\n"]
            parts += [tables.markdown(tables.short_summary(rows))]
            parts += [tables.escaped(captions.caption(one, self.within)) + ".\n"]
            if pairs:
                parts += [tables.markdown(tables.short_comparisons(pairs, one.metric))]
            parts += [f"- {tables.escaped(note)}\n" for note in one.notes]
        if self.solutions:
            parts += ["## Solutions at points picked by hand\n"]
            parts += [tables.markdown(tables.short_points(self.solutions))]
        if self.hides:
            parts += ["## What the chosen numbers hide\n"]
            parts += ["\n".join(f"- {tables.escaped(line)}" for line in self.hides) + "\n"]
        return "\n".join(parts)


def make_report(
    results: Sequence[Results],
    folder: str | Path,
    within: float = 0.01,
    points: Mapping[str, int] | None = None,
) -> list[Path]:
    """Write tables and figures of some results into a folder, and say which files they are."""
    return Report(results, within, points).write(folder)


def distinct(results: Sequence[Results]) -> list[Results]:
    """Two runs of one model get different names, by their folders, so that neither overwrites the other."""
    often = Counter(one.model for one in results)
    named = [
        replace(one, model=f"{one.model} ({one.source})")
        if often[one.model] > 1 and one.source and one.source != one.model
        else one
        for one in results
    ]
    seen: Counter[str] = Counter()
    out = []
    for one in named:  # folders of the same name in different places
        seen[one.model] += 1
        again = seen[one.model]
        out.append(one if again == 1 else replace(one, model=f"{one.model} ({again})"))
    return out


def _joined(groups: Sequence[Sequence[Row]]) -> list[Row]:
    return [row for group in groups for row in group]
