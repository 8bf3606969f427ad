"""What an experiment found: curves, trials, orders, costs, answers. Read from files; no model is needed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.errors import EspalierError, suggest
from .curves import Curve, Trials

LOWER_IS_BETTER = ("perplexity",)
Unit = tuple[int, int]  # layer, head


class Cost(NamedTuple):
    """What the model costs at one level; None where nobody counted."""

    parameters: int | None = None
    macs: int | None = None

    @property
    def megabytes(self) -> float | None:
        """As fp32, in units of 2^20 bytes."""
        return None if self.parameters is None else self.parameters * 4 / 2**20


@dataclass(frozen=True, eq=False)
class Answers:
    """Every answer on one part of the data: `guesses[label]` is [levels, n], or [trials, levels, n]."""

    truth: np.ndarray | None  # [n]; None for language, where the answers are losses
    levels: dict[str, tuple[int, ...]]
    guesses: dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Results:
    """What one experiment on one model found. Perplexity is held as −ln(perplexity): higher is better."""

    model: str
    metric: str
    units: int
    layers: tuple[int, ...] = ()  # units per layer; empty where nobody wrote it down
    uses: int = 1  # how often the model applies each unit (ALBERT: 12)
    target: str = "heads"
    curves: dict[str, Curve] = field(default_factory=dict)
    trials: dict[str, Trials] = field(default_factory=dict)
    orders: dict[str, list[Unit]] = field(default_factory=dict)
    costs: dict[str, dict[int, Cost]] = field(default_factory=dict)
    answers: dict[str, Answers] = field(default_factory=dict)  # by part: validation, test
    test: dict[str, dict[int, tuple[float, ...]]] = field(default_factory=dict)  # one per trial
    scores: dict[str, np.ndarray] = field(default_factory=dict)  # by criterion, [layers, heads]
    pooling: dict[Unit, dict[str, np.ndarray]] = field(default_factory=dict)  # cut unit -> role
    seconds: dict[str, float] = field(default_factory=dict)  # spent on scoring
    steps: dict[str, int | str] = field(default_factory=dict)  # units between scorings, if not one
    task: str = ""
    examples: dict[str, int] = field(default_factory=dict)  # by part: how many
    source: str = ""  # the name of the folder it was read from
    notes: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        """The strategies, the random ones last."""
        return [*self.curves, *self.trials]

    @property
    def lead(self) -> str | None:
        """The strategy that the others are held against: gnorm where it is there."""
        return "gnorm" if "gnorm" in self.curves else next(iter(self.curves), None)

    @property
    def random(self) -> str | None:
        """The random removal that the others are held against: the one with most trials."""
        return max(self.trials, key=lambda label: len(self.trials[label].accuracy), default=None)

    @property
    def base(self) -> float:
        return self.curve(self.labels[0]).base

    def curve(self, label: str) -> Curve:
        """The curve of a strategy; of random removal, the mean over its trials."""
        if label not in self.curves and label not in self.trials:
            raise EspalierError(
                f"{self.model}: nothing was measured of {label!r}{suggest(label, self.labels)} "
                f"There are: {', '.join(self.labels) or 'none'}"
            )
        return self.curves[label] if label in self.curves else self.trials[label].mean()

    def chosen(self, label: str, within: float = 0.01) -> int:
        """How many go by the rule: the longest unbroken stretch within `within` of the base."""
        return self.curve(label).unbroken(within)

    def first(self, label: str) -> Curve:
        """The curve of a strategy, or of its first trial: what a model made of it is chosen by."""
        return self.trials[label].curves[0] if label in self.trials else self.curve(label)

    def cost(self, label: str, removed: int) -> Cost:
        found = self.costs.get(label, {}).get(removed)
        return found or (self.costs.get("base", {}).get(0) if not removed else None) or Cost()

    def show(self, value: float) -> float:
        """The number a reader expects: a perplexity again where one was measured."""
        return math.exp(-value) if self.metric in LOWER_IS_BETTER else value


def read_run(folder: str | Path) -> Results:
    """Read what `espalier compare` wrote; a run that was stopped half-way is read as far as it got."""
    from .reader import run

    return run(folder)
