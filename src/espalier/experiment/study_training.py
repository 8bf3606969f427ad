"""What a study trains with: the same few examples, rate and seed for every contender and level."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..training import train
from ..training.gradual import Gradual, Hold
from ..training.movement import Movement
from ..training.regime import Regime
from .session import Bench
from .study_method import Contender

CUBIC = "cubic"


@dataclass(frozen=True)
class Training:
    """One short training. With a `schedule` there is a second: weights go while it runs."""

    epochs: int = 1
    examples: int | None = None  # drawn by the seed; all if not said
    batch: int = 32
    rate: float = 3e-5
    schedule: str | None = None
    refresh: int | None = None  # steps between two masks, where weights go on the way

    def settings(self) -> dict[str, Any]:
        """What every trained row depends on."""
        told = asdict(self)
        return {name: told[name] for name in ("epochs", "examples", "batch", "rate")}

    def descent(self) -> dict[str, Any]:
        """What those rows depend on besides whose weights go on the way."""
        return {"schedule": self.schedule or CUBIC, "refresh": self.refresh}

    def recover(self, bench: Bench, seed: int) -> dict[str, Any]:
        """Train what is left; zeros stay zeros."""
        return self._run(bench, Hold(**bench.outside), seed)

    def descend(self, bench: Bench, one: Contender, level: float, seed: int) -> dict[str, Any]:
        """Train the dense model while more and more of its weights go."""
        keep, shape = 1 - level, self.descent()["schedule"]
        if one.learned:
            movement = Movement(keep, schedule=shape, scope=one.scope, every=self.refresh, **bench.outside)
            return self._run(bench, movement, seed)
        batches = bench.calibration_of(one.criterion)
        regime = Gradual(
            one.scores,
            keep,
            schedule=shape,
            choose=one.choose,
            batches=batches,
            every=self.refresh,
            **bench.outside,
        )
        return self._run(bench, regime, seed)

    def _run(self, bench: Bench, regime: Regime, seed: int) -> dict[str, Any]:
        return train(
            bench.model,
            bench.tokenizer,
            bench.task.train.sample(self.examples, seed),
            kind=bench.task.kind,
            epochs=self.epochs,
            batch=self.batch,
            rate=self.rate,
            length=bench.length,
            seed=seed,
            regime=regime,
        )
