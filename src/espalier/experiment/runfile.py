"""run.json: what a run was asked, written once and held against what is asked when it goes on."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..errors import EspalierError
from ..evaluation import packed
from ..jsonfile import read_json, write_json
from ..workbench import Bench
from .strategies import Strategy

NAME = "run.json"
# what decides the rows, whatever the strategy
DECIDED = (
    *("model", "fingerprint", "task", "kind", "seed", "length", "precision", "parts", "sites"),
)


def begin(bench: Bench, strategies: Sequence[Strategy], folder: Path, **asked: Any) -> None:
    """Write what is asked, or make sure that a run begun before was asked the same."""
    path = folder / NAME
    now = _described(bench, strategies, asked)
    if path.exists():
        before = read_json(path)
        before.setdefault("precision", "fp32")
        for name in DECIDED:
            if before.get(name) != now[name]:
                differing = _differences(before.get(name), now[name])
                raise EspalierError(
                    f"{folder} holds a run with another {name} ({differing}). Choose another folder with -o, "
                    "or delete it to start over"
                )
        for label, settings in before.get("settings", {}).items():
            if label in now["settings"] and now["settings"][label] != settings:
                raise EspalierError(
                    f"{folder} holds {label} with other settings "
                    f"({_differences(settings, now['settings'][label])}). Choose another folder with -o"
                )
        now["settings"] = {**before.get("settings", {}), **now["settings"]}
        now["strategies"] = list(dict.fromkeys([*before["strategies"], *now["strategies"]]))
    write_json(path, now)


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _differences(before: Any, now: Any, name: str = "") -> str:
    """`step 3, now 1`: what of two descriptions is not the same."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        return "; ".join(
            _differences(before.get(k), now.get(k), f"{name} {k}".strip()) for k in keys
        )
    return f"{name} {_short(before)}, now {_short(now)}".strip()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 60 else text[:57] + "…"


def _described(bench: Bench, strategies: Sequence[Strategy], asked: Any) -> dict[str, Any]:
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
        "kind": bench.kind,
        "length": bench.length,
        "precision": bench.precision,
        **asked,
        "sites": [{"name": s.name, "units": s.units, "uses": s.uses} for s in bench.sites],
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


def check_same_model(bench: Bench, folder: Path) -> None:
    """A run's order is of use for the very model it was made with."""
    if read_json(folder / NAME).get("fingerprint") != bench.fingerprint:
        raise EspalierError(f"the run {folder} was made with other weights than {bench.name} has")


def same_test(bench: Bench, folder: Path) -> bool:
    """Whether the run reports on the same test examples."""
    parts = read_json(folder / NAME).get("parts", {})
    return bool(parts.get("test", {}).get("fingerprint") == bench.task.test.fingerprint())
