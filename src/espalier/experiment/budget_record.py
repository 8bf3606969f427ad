"""What a budget run has finished, on disk beside its folder: a run that was killed resumes from there.

One file of rows: scores of every stage, what was tried for a tolerance, and the facts of every model that is
saved. It is removed when the run is done.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..core.mask import Mask, Plan, Scores
from ..core.terminal import log
from ..io.files import digest
from ..io.paths import PLAN, budget_beside
from ..io.rows import Rows
from ..pruning.path import BudgetPath, Waypoint
from ..selection.budget import total_cost
from ..storage.load import load
from .assessment import SPLITS
from .budget import Budget, Currency
from .method import Method
from .repair import repair_examples
from .session import Session

Finished = tuple[Any, dict[str, Any]]  # a model and the facts about it


class BudgetRecord:
    """The rows of one run; without a folder there are none."""

    rows: Rows | None

    def __init__(self, folder: Path | None, identity: str):
        self.path, self.rows = None if folder is None else budget_beside(folder), None
        self.identity = identity
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._open(self.path, identity)

    def _open(self, path: Path, identity: str) -> None:
        self.rows = Rows(path)
        if [row.get("identity") for row in self.rows][:1] == [identity]:
            kinds = Counter(str(row["kind"]) for row in self._own() if "kind" in row)
            if kinds:
                log.info("resuming from %s: %s", path, ", ".join(f"{n} {kind}" for kind, n in kinds.items()))
            return
        if self.rows.rows:
            log.warning("%s is of another run and begins anew", path)
            path.unlink()
            self.rows = Rows(path)
        self.rows.add({"identity": identity})

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row."""
        if self.rows is not None:
            self.rows.add({**row, "identity": self.identity})  # two runs may write to one file

    def find(self, kind: str, key: Any) -> Any:
        """Return the value of a row, None if there is none."""
        found = (row for row in self._own() if row.get("kind") == kind and row["key"] == key)
        return next((row["value"] for row in found), None)

    def _own(self) -> Iterator[dict[str, Any]]:
        return (row for row in self.rows or () if row.get("identity") == self.identity)

    def follow(self, path: Any) -> Any:
        """Give a path the stages that were scored before, and keep those that will be; return it."""
        if isinstance(path, BudgetPath) and path.gradients is None:
            path.waypoints = _Waypoints(self, path)
        return path

    def finished(self, budget: Budget, place: Path | None) -> Finished | None:
        """Return the model of a budget and its facts if both are on disk."""
        facts = self.find("finished", str(budget))
        if facts is None or place is None or not (place / PLAN).is_file():
            return None
        return load(place).float(), facts

    def finish(self, budget: Budget, made: Finished) -> Finished:
        """Keep the facts of a model that is saved."""
        self.add({"kind": "finished", "key": str(budget), "value": made[1]})
        return made

    def close(self) -> None:
        """Remove the file: everything is done."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def identify(session: Session, method: Method, currency: Currency, options: Any) -> str:
    """Return a digest of everything that decides what a run finds."""
    count = repair_examples(session, options.repair)
    found = {
        "model": session.fingerprint,
        "calibration": session.calibrated_on.fingerprint(),
        "splits": [getattr(session.task, split).fingerprint() for split in SPLITS],
        "refit": None
        if count is None
        else [count, session.task.train.sample(count, session.seed).fingerprint()],
        "batches": [len(batch["input_ids"]) for batch in session.calibration],
        "length": [session.max_length, session.precision, session.calibration.examples],
        "stored": str(session.stored),
        "metric": session.task.metric,
        "method": method.settings(),
        "costs": currency.costs,
        "options": {k: str(v) for k, v in asdict(options).items() if k != "overwrite"},
        "torch": torch.__version__,
    }
    return digest(json.dumps(found, sort_keys=True, default=str).encode())


class _Waypoints(list[Waypoint]):
    """The stages of a path; each is on disk before the next is scored."""

    def __init__(self, record: BudgetRecord, path: BudgetPath):
        super().__init__()
        self.record, self.path = record, path
        while (row := record.find("stage", len(self))) is not None:
            super().append(self._read(row))

    def append(self, point: Waypoint) -> None:
        kept = {name: point.scores[name][mask].tolist() for name, mask in point.mask.items()}
        if all(torch.tensor(values).isfinite().all() for values in kept.values()):
            value = {"plan": Plan.of(point.mask).to_dict(), "scores": kept}
            self.record.add({"kind": "stage", "key": len(self), "value": value})
        super().append(point)

    def _read(self, row: Mapping[str, Any]) -> Waypoint:
        mask = Plan.from_dict(row["plan"]).mask()
        mask = Mask({site.name: mask[site.name] for site in self.path.sites})
        scores = Scores()
        for name, kept in mask.items():
            scores[name] = torch.full(kept.shape, -torch.inf, dtype=torch.float64)
            scores[name][kept] = torch.tensor(row["scores"][name], dtype=torch.float64)
        return Waypoint(mask, total_cost(mask, self.path.costs), scores, {})
