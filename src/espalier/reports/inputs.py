"""What may be reported on: run folders, folders of published files, and single files of either."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..analysis.results import Results, read_run
from ..core.errors import EspalierError
from ..reproductions.greedy_gnorm.published import is_published, read_published

RUN_FILES = ("run.json", "rows.jsonl", "scores.jsonl")
WANTED = (
    "Give a run folder (with run.json), a folder of published files, or such files: "
    "pruned_heads_accuracy(BERT)basedonGreedyGnorm.csv, BERTrandompruned_heads_data_50x25_1group.xlsx"
)


def read(paths: Sequence[Path]) -> list[Results]:
    """All results that lie there, in the order given; single published files are taken together."""
    out: list[Results] = []
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            out += _folder(path)
        elif not path.exists():
            raise EspalierError(f"there is no {path}. {WANTED}")
        elif path.name in RUN_FILES:
            out.append(read_run(path.parent))
        elif is_published(path):
            files.append(path)
        else:
            raise EspalierError(f"{path} is not a file of results. {WANTED}")
    return out + (read_published(files) if files else [])


def folder_of(path: Path) -> Path:
    """A folder, or that of one of its files."""
    return path if path.is_dir() else path.parent


def run_folder(paths: Sequence[Path]) -> Path | None:
    """The one run folder that is meant, if it is one."""
    if len(paths) != 1:
        return None
    place = folder_of(paths[0])
    return place if (place / "run.json").is_file() else None


def _folder(path: Path) -> list[Results]:
    if (path / "run.json").is_file():
        return [read_run(path)]
    inside = sorted(path.iterdir())
    if any(is_published(file) for file in inside):
        return read_published(path)
    runs = [folder for folder in inside if (folder / "run.json").is_file()]
    if not runs:
        raise EspalierError(f"{path} holds no results. {WANTED}")
    return [read_run(folder) for folder in runs]
