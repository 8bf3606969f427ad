"""Prune while the Trainer of transformers trains: `Trainer(…, callbacks=[PruneCallback(remove=0.5)])`.

The same callbacks as in our own training do the work, between two steps of its optimizer. Only this file and
the model classes import transformers at once: what it defines is derived from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from transformers import TrainerCallback

from .. import criteria
from ..core.batches import Batches
from ..core.errors import InvalidValueError, UnsupportedError
from ..core.types import PreTrainedModel
from .gradual import Gradual, GradualUnits, Scheduled

TARGETS = ("heads", "neurons", "weights")


@dataclass
class TrainerRun:
    """A training of the Trainer, as our callbacks see it."""

    model: PreTrainedModel
    optimizer: Any
    total_steps: int
    step: int
    accelerator: Any


class PruneCallback(TrainerCallback):  # type: ignore[misc]
    """Remove heads, neurons or weights by a schedule while a Trainer trains; at the end units are cut.

    From `initial` to `remove` of them are removed over the first `until` of all steps, a new mask every
    `mask_interval` steps, by the lowest scores of a criterion (`method`). What it needs to see are `batches`,
    or else `examples` of the training data, drawn by the Trainer's seed. Removed weights are exactly zero in
    every step. A training that resumes from a checkpoint goes on with the zeros it finds.

    >>> trainer = Trainer(model, args, train_dataset=data, callbacks=[PruneCallback("neurons", remove=0.5)])
    >>> trainer.train()
    >>> espalier.save(trainer.model, "small", tokenizer=tokenizer)
    """

    def __init__(
        self,
        target: str = "heads",
        *,
        remove: float,
        method: str | None = None,
        scope: str = "global",
        schedule: str = "cubic",
        initial: float = 0.0,
        until: float = 0.75,
        mask_interval: int | None = None,
        batches: Batches | list[dict[str, Any]] | None = None,
        examples: int = 256,
    ):
        if target not in TARGETS:
            raise InvalidValueError(f"`target` is {', '.join(TARGETS)}; got {target!r}", "target")
        self.criterion = criteria.load(method or ("magnitude" if target == "weights" else "taylor"))
        if target not in self.criterion.targets or self.criterion.learned:
            raise InvalidValueError(f"{method} gives no scores for {target} while a Trainer trains", "method")
        if examples < 1:
            raise InvalidValueError(f"`examples` is at least 1; got {examples}", "examples")
        own = {} if target == "weights" else {"target": target}
        make: Any = Gradual if target == "weights" else GradualUnits
        how: Any = dict(scope=scope, schedule=schedule, initial=initial, until=until, **own)
        given = None if batches is None else Batches(batches)
        self.inner: Scheduled = make(
            self.criterion, remove, mask_interval=mask_interval, batches=given, **how
        )
        self.examples = examples
        self.run: TrainerRun | None = None

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        *,
        model: Any,
        optimizer: Any,
        train_dataloader: Any,
        **_: Any,
    ) -> None:
        """Hold what is zero already, and put on the first mask."""
        if args.world_size > 1:
            raise UnsupportedError("PruneCallback works in one process; several would choose different masks")
        if args.load_best_model_at_end:
            raise InvalidValueError(
                "load_best_model_at_end would bring back an earlier model, pruned less; leave it out", "args"
            )
        if self.criterion.needs_data and self.inner.batches is None:
            self.inner.batches = self._draw(train_dataloader, args.seed)
        device = SimpleNamespace(device=model.device, is_main_process=True)
        self.run = TrainerRun(model, optimizer, state.max_steps, state.global_step, device)
        self.inner.on_start(self.run)  # type: ignore[arg-type]

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Put on the next mask, if it is time."""
        if self.run is not None:
            self.run.step = state.global_step
            self.inner.after_step(self.run)  # type: ignore[arg-type]

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Log the fraction that is removed."""
        for row in (logs, state.log_history[-1] if state.log_history else None):
            if row is not None and self.run is not None:
                row["removed"] = self.inner.ramp(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Cut heads and neurons, and remove all hooks. Weights stay at zero."""
        if self.run is not None:
            self.inner.after_training(self.run)  # type: ignore[arg-type]
            self.inner.on_end()
            self.run = None

    def _draw(self, loader: Any, seed: int) -> Batches:
        """Return batches of training examples; the Trainer's own order is not disturbed."""
        data = loader.dataset
        if not hasattr(data, "__len__"):
            raise InvalidValueError(
                f"{self.criterion.__name__} needs examples, and this data can only be read in order: give "
                "`batches`",
                "batches",
            )
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(data), generator=generator)[: self.examples].tolist()
        size = loader.batch_size or 8
        parts = [chosen[i : i + size] for i in range(0, len(chosen), size)]
        return Batches([dict(loader.collate_fn([data[i] for i in part])) for part in parts])
