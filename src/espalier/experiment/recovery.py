"""Recovery: a short training after pruning, or during it. The same for every method and level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

from .. import training
from ..core.errors import InvalidValueError
from ..selection.schedules import Ramp
from ..training.callbacks import Callback, Hold
from ..training.gradual import Gradual, GradualUnits
from ..training.loop import train
from .method import Method
from .scorer import score_model
from .session import Session

DEFAULT_SCHEDULE = "cubic"


@dataclass(frozen=True)
class Recovery:
    """One training. With a `schedule`, models are also pruned gradually while they train."""

    epochs: int = 1
    examples: int | None = None  # training examples, see `Task.draw_train`; None: all
    batch_size: int = 32
    lr: float = 3e-5
    schedule: str | None = None
    mask_interval: int | None = None  # steps between two masks of a gradual pruning

    def __post_init__(self) -> None:
        if self.schedule:
            Ramp(0.5, 1, self.schedule)
        if self.epochs < 1 or not 0 < self.lr < float("inf"):
            raise InvalidValueError(
                f"`epochs` is at least 1 and `lr` positive; got {self.epochs} and {self.lr:g}", "lr"
            )

    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def gradual(self, method: Method) -> bool:
        """Whether a method is also pruned gradually; one that learns its scores is pruned only so."""
        return method.learned or self.schedule is not None

    def gradual_settings(self) -> dict[str, Any]:
        return {"schedule": self.schedule or DEFAULT_SCHEDULE, "mask_interval": self.mask_interval}

    def after(self, session: Session, model: Any, seed: int) -> Mapping[str, Any]:
        """Train a pruned model in place; zeros stay zeros."""
        return self._train(session, model, Hold(**session.held), seed)

    def during(self, session: Session, model: Any, method: Method, remove: float, trial: int | None) -> None:
        """Train a dense model in place while it is pruned; heads and neurons are cut in the end."""
        callback = gradual_callback(session, method, remove, trial, **self.gradual_settings())
        self._train(session, model, callback, session.seed)

    def _train(self, session: Session, model: Any, callback: Callback, seed: int) -> Mapping[str, Any]:
        return train(
            model,
            session.tokenizer,
            session.task.draw_train(self.examples, seed),
            kind=session.task.kind,
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            max_length=session.max_length,
            seed=seed,
            precision=session.precision,
            callback=callback,
        )


def callback_class(method: Method, target: str) -> Any:
    """Return the callback that prunes by a method during training."""
    if target == "slots":
        raise InvalidValueError("slots are not pruned while training: leave `epochs` out", "epochs")
    if method.learned:
        return getattr(training, method.loaded.learned)
    return Gradual if target == "weights" else GradualUnits


def recovery_of(
    epochs: int, examples: int | None, batch_size: int, lr: float, *gradual: Any
) -> Recovery | None:
    """Return the training after pruning, None for no epochs; `gradual` is schedule and mask_interval."""
    if not epochs and (examples or any(gradual)):
        raise InvalidValueError("`schedule`, `examples` and `mask_interval` need `epochs`", "epochs")
    return Recovery(epochs, examples, batch_size, lr, *gradual) if epochs else None


def gradual_callback(
    session: Session, method: Method, remove: float | None, trial: int | None = None, **options: Any
) -> Callback:
    """Return what prunes during training: scores learned with the weights, or computed now and then."""
    scope = method.scope
    make = callback_class(method, session.target)
    if method.learned:
        taken = {field.name for field in fields(make) if field.init}
        given = {**options, **session.held, "scope": scope, "target": session.target}
        return make(remove, **{name: value for name, value in given.items() if name in taken})
    score = partial(score_model, session, method, trial=trial)
    batches = session.calibration_of(method.criterion)
    about = {"method": method.label, "scope": scope, "calibration": session.calibrated_on.fingerprint()}
    more = session.held if session.target == "weights" else {"target": session.target}
    return make(score, remove, scope=scope, batches=batches, about=about, **options, **more)
