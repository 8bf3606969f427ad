"""The report of sparsity studies, made from files alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..analysis.sparsity import Study
from ..core.errors import EspalierError
from . import sparsity_tables as told
from . import style, tables
from .figures import sparsity


class SparsityReport:
    """All that is said about some studies."""

    def __init__(self, studies: Sequence[Study], within: float | None = None):
        self.studies = list(studies)
        self.within = self.studies[0].within if within is None else within
        for study in self.studies:
            if not study.lines:
                raise EspalierError(f"{study.model}: nothing was measured beyond the dense model")
        self.sheets: dict[str, list[dict[str, Any]]] = {
            "levels": [row for study in self.studies for row in told.every_level(study)],
            "rules": [row for study in self.studies for row in told.rules(study, self.within)],
            "pairs": [row for study in self.studies for row in told.pairs(study)],
        }

    def write(self, folder: Path, figures: bool = True) -> list[Path]:
        """Write `tables/` and `figures/`."""
        try:
            (folder / "tables").mkdir(parents=True, exist_ok=True)
            place = folder / "tables"
            files = [
                tables.write_csv(place / f"{name}.csv", rows) for name, rows in self.sheets.items() if rows
            ]
            files.append(tables.write_xlsx(place / "report.xlsx", self.sheets))
            files.append(place / "summary.md")
            files[-1].write_text(self.markdown(), encoding="utf-8")
            if figures:
                (folder / "figures").mkdir(exist_ok=True)
                with style.look():
                    figure = sparsity.draw(self.studies, self.within)
                    files += style.save(figure, folder / "figures" / "sparsity")
            return files
        except OSError as error:
            raise EspalierError(
                f"cannot write the report to {folder}: {error.strerror}. Choose another folder with -o"
            ) from None

    def markdown(self) -> str:
        return "\n".join(told.page(study, self.within) for study in self.studies)

    def dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"study": "sparsity", "within": self.within, **self.sheets}
