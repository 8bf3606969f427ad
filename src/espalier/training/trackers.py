"""Trackers: the numbers of a training in TensorBoard, trackio, W&B and whatever else accelerate can write to.

`train(track="tensorboard")` logs loss, learning rate, what the callback measures and, after every epoch, what
was evaluated. Several names have commas between; `wandb:project` names the project, `tensorboard:place` the
folder of the logs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..core.errors import DependencyError, InvalidValueError, UnknownNameError
from ..core.types import PreTrainedModel
from ..io.paths import TRAINING_LOGS
from .callbacks import Callback

if TYPE_CHECKING:
    from .run import Run

POINTS = 1000  # of a curve at most
PROJECT = "espalier"
EXTRAS = {"tensorboard": "track"}  # what an extra of ours brings


def parse_trackers(track: str | None, folder: str | Path | None) -> list[tuple[str, str]]:
    """Return the trackers that are named and where each writes; raise for what cannot be used."""
    if not track:
        return []
    try:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
        from accelerate.utils import LoggerType
    except ImportError:
        raise DependencyError("accelerate", "train", "tracking") from None

    own = {"all", "none", *map(str, LoggerType)}
    ready = {*map(str, get_available_trackers()), *(name for name in LOGGER_TYPE_TO_CLASS if name not in own)}
    found = []
    for piece in track.split(","):
        name, _, place = (part.strip() for part in piece.partition(":"))
        if name not in LOGGER_TYPE_TO_CLASS:
            raise UnknownNameError("tracker", name, LOGGER_TYPE_TO_CLASS, "track")
        if name not in ready:
            raise DependencyError(name, EXTRAS.get(name, ""), f"tracking with {name}")
        if LOGGER_TYPE_TO_CLASS[name].requires_logging_directory:
            if not place and folder is None:
                raise InvalidValueError(
                    f"{name} writes files: give a `folder`, or a place as {name}:logs in `track`", "track"
                )
            place = place or str(Path(folder or "") / TRAINING_LOGS)
        found.append((name, place or PROJECT))
    return found


@dataclass(eq=False)
class Track(Callback):
    """Log what happens to trackers while another callback does its work.

    It adds no settings: a training is the same, and resumes, with and without it.
    """

    inner: Callback
    places: list[tuple[str, str]]
    name: str = "training"
    _open: list[Any] = field(default_factory=list, init=False, repr=False)

    def after_step(self, run: Run) -> None:
        self.inner.after_step(run)
        if run.step % max(1, run.total_steps // POINTS) == 0 or run.step == run.total_steps:
            self._log(run, {"loss": run.losses[-1], "lr": run.lr, **self.inner.measures(run)})

    def after_epoch(self, run: Run) -> None:
        self.inner.after_epoch(run)
        row = {name: value for name, value in run.epochs[-1].items() if name != "epoch"}
        self._log(run, {f"epoch/{name}": value for name, value in row.items()})

    def _log(self, run: Run, values: Mapping[str, Any]) -> None:
        if not run.accelerator.is_main_process:
            return
        if not self._open:
            self._start(run)
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
        for tracker in self._open:
            tracker.log(numbers, step=run.step)

    def _start(self, run: Run) -> None:
        """Open the trackers at the first step, when it is known where the training resumes."""
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        plain = {name: value for name, value in run.settings.items() if isinstance(value, str | int | float)}
        for name, place in self.places:
            make = LOGGER_TYPE_TO_CLASS[name]
            files = make.requires_logging_directory
            # steps that a killed training logged after its last state are logged again: the first ones go
            again = {"purge_step": run.step} if name == "tensorboard" else {}
            tracker = make("", place, **again) if files else make(place, name=self.name)
            tracker.start()
            self._open.append(tracker)
            if files:
                tracker.log({"settings": json.dumps(plain, indent=1)}, step=run.step)
            else:
                tracker.store_init_configuration(plain)

    def on_end(self) -> None:
        try:
            self.inner.on_end()
        finally:
            for tracker in self._open:
                tracker.finish()
            self._open.clear()

    def settings(self) -> dict[str, Any]:
        return self.inner.settings()

    def wrap(self, model: PreTrainedModel) -> None:
        self.inner.wrap(model)

    def unwrap(self, model: PreTrainedModel) -> None:
        self.inner.unwrap(model)

    def on_start(self, run: Run) -> None:
        self.inner.on_start(run)

    def after_backward(self, run: Run) -> None:
        self.inner.after_backward(run)

    def after_training(self, run: Run) -> None:
        self.inner.after_training(run)

    def state(self) -> dict[str, Tensor]:
        return self.inner.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        self.inner.load_state(tensors)

    def summary(self) -> dict[str, Any]:
        return self.inner.summary()
