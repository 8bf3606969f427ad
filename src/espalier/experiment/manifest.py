"""run.json: what a run was asked, written once and held against what is asked when it goes on."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from .. import __version__
from ..core.errors import EspalierError, differences
from ..core.log import log
from ..evaluation.metrics import guessing
from ..evaluation.predictions import packed
from ..io.json_file import read_json, write_json
from ..io.rows import Row
from .session import Bench

NAME = "run.json"
# what decides the rows, whatever the strategy
DECIDED = (*("model", "fingerprint", "task", "kind", "seed", "length", "precision", "parts", "sites"),)


class Named(Protocol):
    """What a run remembers of a strategy, of whatever kind."""

    @property
    def label(self) -> str: ...
    def settings(self) -> dict[str, Any]: ...


def begin(bench: Bench, strategies: Sequence[Named], folder: Path, **asked: Any) -> None:
    """Write what is asked, or make sure that a run begun before was asked the same."""
    path = folder / NAME
    check_folder(folder)
    now = _described(bench, strategies, asked)
    if path.exists():
        before = read_json(path)
        before.setdefault("precision", "fp32")
        for name in DECIDED:
            if before.get(name) != now[name]:
                differing = differences(before.get(name), now[name])
                if name == "parts":
                    differing = _other_examples(before.get(name), now[name])
                raise EspalierError(
                    f"{folder} holds a run with another {name} ({differing}). Choose another folder with -o, "
                    "or delete it to start over"
                )
        for label, settings in before.get("settings", {}).items():
            if label in now["settings"] and now["settings"][label] != settings:
                raise EspalierError(
                    f"{folder} holds {label} with other settings "
                    f"({differences(settings, now['settings'][label])}). Choose another folder with -o"
                )
        now["settings"] = {**before.get("settings", {}), **now["settings"]}
        now["strategies"] = list(dict.fromkeys([*before["strategies"], *now["strategies"]]))
    write_json(path, now)


def _other_examples(before: Any, now: dict[str, Any]) -> str:
    """`validation of 60 examples, now 40`; fingerprints and labels say nothing to a reader."""
    said = []
    for part, told in now.items():
        old = before.get(part) if isinstance(before, dict) else None
        if isinstance(old, dict) and old != told:
            same = old.get("n") == told["n"]
            what = "the same number of others" if same else f"now {told['n']}"
            said.append(f"{part} of {old.get('n')} examples, {what}")
    return "; ".join(said) or "they are not described"


def check_folder(folder: Path) -> None:
    """A run goes into a folder of its own: an empty one, a new one, or that of a run begun before."""
    if folder.exists() and not folder.is_dir():
        raise EspalierError(f"{folder} is a file; give the name of a folder with -o")
    if (folder / NAME).exists() or not folder.is_dir():
        return
    others = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
    if others:
        raise EspalierError(
            f"{folder} is no run (it has no {NAME}), and it holds {others[0]}. Choose another folder with -o"
        )


def told(folder: Path, name: str) -> Any:
    """What a run begun before says of itself, or None."""
    path = folder / NAME
    return read_json(path).get(name) if path.exists() else None


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _described(bench: Bench, strategies: Sequence[Named], asked: Any) -> dict[str, Any]:
    import transformers

    task = bench.task
    parts: dict[str, Any] = {
        "calibration": {
            "n": sum(len(places) for places in bench.calibration.places),
            "fingerprint": bench.calibrated_on.fingerprint(),
            "batches": _digest(
                [
                    [list(map(list, bench.calibration.places))],
                    list(map(list, bench.calibration.groups)),
                ]
            ),
        }
    }
    for part in ("validation", "test"):
        examples, truth = getattr(task, part), bench.truth(part)
        parts[part] = {
            "n": sum(len(places) for places in getattr(bench, part).places),
            "fingerprint": examples.fingerprint(),
            "labels": None if truth is None else packed(truth, task.kind),
        }
    return {
        "version": 1,
        "model": bench.name,
        "class": type(bench.model).__name__,
        "fingerprint": bench.fingerprint,
        "task": task.name,
        "classes": list(task.classes),
        "metric": task.metric,
        "kind": bench.target,
        "length": bench.length,
        "precision": bench.precision,
        **asked,
        "sites": [{"name": s.name, "units": s.units, "uses": getattr(s, "uses", 1)} for s in bench.sites],
        "strategies": [strategy.label for strategy in strategies],
        "settings": {strategy.label: strategy.settings() for strategy in strategies},
        "parts": parts,
        "notes": list(task.notes),
        "versions": {
            "espalier": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "threads": torch.get_num_threads(),
        },
    }


def warn_of_guessing(bench: Bench, rows: Iterable[Row]) -> None:
    """Curves of a model that has learned nothing say nothing."""
    base = next(r for r in rows if r["strategy"] == "base" and r["split"] == "validation")
    said = guessing(bench.truth("validation"), base["metrics"].get("accuracy"))
    if said:
        log.warning("%s: %s", bench.name, said)


def check_same_model(bench: Bench, folder: Path) -> None:
    """A run's order is of use for the very model it was made with."""
    if read_json(folder / NAME).get("fingerprint") != bench.fingerprint:
        raise EspalierError(f"the run {folder} was made with other weights than {bench.name} has")


def same_test(bench: Bench, folder: Path) -> bool:
    """Whether the run reports on the same test examples."""
    parts = read_json(folder / NAME).get("parts", {})
    return bool(parts.get("test", {}).get("fingerprint") == bench.task.test.fingerprint())
