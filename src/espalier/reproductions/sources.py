"""Where results and settings come from: run folders, files of the published schema, recipes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.curves import Tolerance, parse_tolerance
from ..analysis.reader import read_run
from ..analysis.results import Results
from ..core.errors import DependencyError, FolderError, InvalidValueError, UnsupportedError
from ..core.progress import OnProgress, Progress, ignore
from ..core.terminal import log
from ..experiment.session import Session, open_session
from ..io.paths import CONFIG, PUBLISHED, ROWS, RUN, SCORES
from ..reports import Report
from ..reports.outcome import Comparison
from .data import task_of
from .greedy_gnorm.pooling import write_pooling
from .greedy_gnorm.published import is_published, read_published, write_published
from .recipe import Recipe, load

if TYPE_CHECKING:
    from ..experiment.session import AnyModel

FAITHFUL = ":faithful"
WANTED = (
    "Give a run folder, a folder of published files, or such files: "
    "pruned_heads_accuracy(BERT)basedonGreedyGnorm.csv, BERTrandompruned_heads_data_50x25_1group.xlsx"
)


def read_sources(paths: Sequence[Path]) -> list[Results]:
    """Read all results, in the order given; single published files are read together."""
    out: list[Results] = []
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            out += _read_folder(path)
        elif path.name in (RUN, ROWS, SCORES) and path.exists():
            out.append(read_run(path.parent))
        elif path.exists() and is_published(path):
            files.append(path)
        else:
            raise FolderError(f"{path} holds no results, or does not exist. {WANTED}", path)
    return out + (read_published(files) if files else [])


def _read_folder(path: Path) -> list[Results]:
    if (path / CONFIG).is_file():
        raise FolderError(f"{path} is a model, not a run: measure it with espalier.evaluate", path)
    if (path / RUN).is_file():
        return [read_run(path)]
    inside = sorted(path.iterdir())
    if any(is_published(file) for file in inside):
        return read_published(path)
    runs = [folder for folder in inside if (folder / RUN).is_file()]
    if not runs:
        raise FolderError(f"{path} holds no results. {WANTED}", path)
    return [read_run(folder) for folder in runs]


def own_folder(sources: Sequence[Path]) -> Path:
    """Return where a report is written if no place is given: the run folder if it is one, else `report`."""
    return sources[0] if len(sources) == 1 and (sources[0] / RUN).is_file() else Path("report")


def make_report(
    sources: Sequence[Path],
    folder: Path | None,
    tolerance: Tolerance | None = None,
    points: Mapping[str, int] | None = None,
    *,
    figures: bool = True,
    published: bool = False,
    axis: str = "removed",
    session: Session | None = None,
    on_progress: OnProgress = ignore,
) -> Comparison:
    """Read results and write tables, figures and a page of them, if a folder is given; or a page alone.

    With the `session` of a run that was just measured, what a report shows of its model is computed first.
    """
    if session is not None:
        write_pooling(session, sources[0])
    on_progress(Progress("reading results"))
    results = read_sources(sources)
    found = Report(results, None if tolerance is None else parse_tolerance(tolerance), points)
    files = found.write(folder, figures, axis, on_progress) if folder else []
    for one in results if published and folder else ():
        try:
            files += write_published(one, folder / PUBLISHED)  # type: ignore[operator]
        except (UnsupportedError, DependencyError) as error:  # the rest of the report is as good without it
            log.info("not written in the published schema: %s", error)
    notes = list(found.warnings)
    notes += [f"All numbers, curves and maps: {file}" for file in files if file.suffix == ".html"]
    facts = {**found.to_dict(), "files": [str(file) for file in files]}
    return Comparison(facts, found.brief(), notes, folder, results=results)


@dataclass(frozen=True)
class OpenRecipe:
    """A recipe in one of its modes."""

    recipe: Recipe
    faithful: bool

    @property
    def methods(self) -> tuple[str, ...]:
        return self.recipe.mode(self.faithful).methods

    def session(
        self, model: AnyModel | None = None, *, on_progress: OnProgress = ignore, **options: Any
    ) -> Session:
        """Open the session that the recipe describes; its model may be replaced."""
        recipe = self.recipe
        on_progress(Progress(f"reading {recipe.task}"))
        task, own = task_of(recipe, faithful=self.faithful)
        sizes = {"calibration": len(task.train), "validation": None, "test": None}
        sizes |= {"max_length": recipe.max_length, "seed": recipe.seed}
        name = recipe.published.name if recipe.published and model is None else None
        batch_size = recipe.mode(self.faithful).batch_size
        options |= {**sizes, "calibration_batch_size": batch_size, "own_calibration": own, "name": name}
        return open_session(model or recipe.model, task, on_progress=on_progress, **options)


def open_recipe(name: str, *, trust: bool = False) -> OpenRecipe:
    """Return a recipe by its name or file; `name:faithful` as it was published, shared texts and all.

    A recipe is data: Python files that it names are run only with `trust`.
    """
    plain = name.removesuffix(FAITHFUL)
    recipe = load(plain)
    named = [recipe.dataset, *(x for mode in (recipe.honest, recipe.faithful) if mode for x in mode.methods)]
    code = next(
        (word for one in named for word in re.split("[:,=]", one) if word.strip().endswith(".py")), None
    )
    if code is not None and not trust:
        raise InvalidValueError(
            f"the recipe {plain} names a Python file, {code}, which would be run. Read it first; if you "
            "trust it, give `trust=True`",
            "trust",
        )
    return OpenRecipe(recipe, faithful=plain != name)
