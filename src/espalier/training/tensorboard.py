"""TensorBoard logs of a training: loss and learning rate of every step, and what every epoch measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import DependencyError
from .callbacks import Callback

if TYPE_CHECKING:
    from .run import Run


@dataclass(eq=False)
class TensorBoard(Callback):
    """Write what a training measures into a folder that `tensorboard --logdir` shows.

    `others` are callbacks of the same training, whose own numbers (`scalars`) are logged with every epoch.
    """

    folder: str | Path
    others: Sequence[Callback] = ()
    _writer: Any = field(default=None, init=False, repr=False)

    def on_start(self, run: Run) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise DependencyError("tensorboard", "logs", "a log for TensorBoard") from None
        self._open = SummaryWriter if run.accelerator.is_main_process else None

    def after_step(self, run: Run) -> None:
        if self._writer is None and self._open is not None:  # what a killed training logged after its state
            self._writer = self._open(str(self.folder), purge_step=run.step)
        if self._writer is not None:
            self._writer.add_scalar("train/loss", run.losses[-1], run.step)
            self._writer.add_scalar("train/lr", run.optimizer.param_groups[0]["lr"], run.step)

    def after_epoch(self, run: Run) -> None:
        if self._writer is None:
            return
        measured = {name: value for name, value in run.epochs[-1].items() if name != "epoch"}
        own = {name: value for other in self.others for name, value in other.scalars().items()}
        for name, value in (measured | own).items():
            if isinstance(value, int | float):
                self._writer.add_scalar(f"epoch/{name.replace(' ', '_')}", value, run.step)
        self._writer.flush()

    def on_end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
