"""Recovery of a pruned model: trained again in one way or several, and measured before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from ..core.progress import OnProgress, Progress, ignore
from ..engine.dtypes import check_dtype
from ..evaluation import metrics
from ..training.blockwise import Blockwise
from ..training.callbacks import Hold
from ..training.distillation import Distillation, warn_if_equal
from ..training.low_rank import LowRank
from ..training.run import model_loss
from ..training.stages import Stages, stage_of
from .assessment import assess
from .model import OpenedModel, check_holds_model, open_model, short_name
from .next_steps import export_step, saved_notes
from .output import stored_in
from .session import Session, open_session
from .trainer import TrainOptions, take_loop, train_session

if TYPE_CHECKING:
    from .session import AnyModel, AnyTask

LOSSES = {"distill": Distillation, "blockwise": Blockwise}  # those with a teacher
WAYS = ("finetune", *LOSSES)
IN_ORDER = ("blockwise", "distill", "finetune")
LOOPS = {"blockwise": (8, 2e-4)}  # batch size and highest learning rate, where they are not as in `LOOP`
LOOP = (32, 3e-5)
WEIGHTS = {"temperature", "soft_weight", "hidden_weight"}  # of a distillation


class RecoverOptions(TrainOptions, total=False):
    """Options of a recovery: of its training, and the dtype that is saved, that of the model by default."""

    dtype: str | None


def recover_model(
    model: AnyModel,
    task: AnyTask,
    folder: Path | None,
    options: RecoverOptions,
    *,
    way: str,
    teacher: Any,
    distillation: Mapping[str, float] | None,
    on_progress: OnProgress = ignore,
    **training: Any,
) -> tuple[Any, dict[str, Any], list[str]]:
    """Train a pruned model and measure it before and after. Returns it, facts and notes."""
    check_recovery(model, way, teacher, distillation or {})
    given: Any = dict(options)
    check_dtype(dtype := given.pop("dtype", None))
    loop = take_loop(given)
    given["calibration"] = 1
    session = open_session(model, task, target="weights", on_progress=on_progress, **given)
    session = stored_in(session, dtype)
    how: Any = dict(way=way, teacher=teacher, distillation=distillation, on_progress=on_progress)
    facts = recover_session(session, folder, **how, **training, **loop)
    ship = export_step(folder, session.model)
    step = [f"Export it: {ship}"] if ship else []
    return session.model, facts, [*_outcome_notes(facts), *saved_notes(session, folder, trained=False), *step]


def recover_session(
    session: Session,
    folder: Path | None,
    *,
    way: str = "finetune",
    teacher: Any = None,
    distillation: Mapping[str, float] | None = None,
    lora: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    on_progress: OnProgress = ignore,
    **options: Any,
) -> dict[str, Any]:
    """Train a pruned model in place and measure it before and after; pruned units and weights stay pruned.

    Several ways, with commas, follow each other in one training, each for `epochs` epochs, and the learning
    rate falls over all of them. Of several epochs the one that is best on validation data is kept.
    """
    on_progress(Progress("measuring the model before training"))
    before = assess(session, session.model, folder=session.folder, base=True)
    recovered: dict[str, Any] = {"from": session.name, "with": way}
    if teacher is not None:
        opened = _open_teacher(session, teacher, on_progress)
        recovered["teacher"] = name = short_name(opened.name)
        options["loss"] = _loss(way, opened.model, session.task.kind, name, distillation or {})
    options["epochs"] *= len(way.split(","))
    options |= fill_loop(way, batch_size, lr)
    origin = session.origin() | {"recovered": recovered}
    metric = metrics.load(session.task.metric)

    def score(row: Mapping[str, Any]) -> float:
        value = row[f"validation {metric.name}"]
        return -math.inf if value is None else metric.score(value)

    callback = Hold(**session.held) if lora is None else LowRank(lora, session.seed)
    how: dict[str, Any] = {"best": score, "on_progress": on_progress, **options}
    history = train_session(session, folder, origin, callback, dtype=session.stored, **how)
    on_progress(Progress("measuring the recovered model"))
    after = assess(replace(session, opened=None), session.model, folder=folder)
    facts: dict[str, Any] = {"model": session.name, "task": session.task.name, "way": way}
    facts |= _describe(session, way, options, history)
    scores = [score(row) for row in facts["epochs"]]
    if len(scores) > 1 and max(scores) > -math.inf:
        facts["kept_epoch"] = 1 + scores.index(max(scores))
    return facts | {"folder": folder and str(folder), "before": before, "after": after}


def _outcome_notes(facts: Mapping[str, Any]) -> list[str]:
    """Say which of several epochs is kept, and if validation data got worse by all of them."""
    notes = []
    if "kept_epoch" in facts:
        way = facts["epochs"][facts["kept_epoch"] - 1].get("way")
        which = f"Epoch {facts['kept_epoch']}{f' ({way})' if way else ''}"
        notes.append(f"{which} is kept, the best on validation data.")
    before, after = (facts[when]["validation"] for when in ("before", "after"))
    metric = metrics.load(before["metric"])
    values = [one[metric.name] for one in (before, after)]
    if None not in values and metric.score(values[1]) < metric.score(values[0]):
        seen = f"{metric.name} {values[0]:.4g} before, {values[1]:.4g} after"
        notes.append(f"Training made it worse on validation data: {seen}. More examples or epochs may help.")
    return notes


def fill_loop(way: str, batch_size: int | None, lr: float | None) -> dict[str, Any]:
    """Return batch size and learning rate, by default those of the way; several ways share the usual ones."""
    size, highest = LOOPS.get(way, LOOP)
    return {
        "batch_size": size if batch_size is None else batch_size,
        "lr": highest if lr is None else lr,
    }


def _describe(
    session: Session, way: str, options: Mapping[str, Any], history: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a recovery did: its epochs, with the way of each where there are several."""
    ways, epochs = way.split(","), history["epochs"]
    shown = [{"way": stage_of(ways, i, len(epochs))} if len(ways) > 1 else {} for i in range(len(epochs))]
    examples = len(session.task.draw_train(options.get("examples"), session.seed))
    facts = {"steps": history["steps"], "seconds": history["seconds"], "examples": examples}
    return facts | {"epochs": [row | more for row, more in zip(epochs, shown)]}


def check_recovery(model: Any, way: str, teacher: Any, distillation: Mapping[str, Any]) -> None:
    """Raise before anything is loaded if teacher and way do not fit, or a folder holds no model."""
    ways = way.split(",")
    if not {*ways} <= {*WAYS} or len({*ways}) < len(ways):
        several = f"or several of them in order, each once, as {','.join(IN_ORDER)}"
        raise InvalidValueError(f"`way` is {' or '.join(WAYS)}, {several}; got {way!r}", "way")
    if any(one in LOSSES for one in ways) != (teacher is not None):
        taught = " and ".join(LOSSES)
        raise InvalidValueError(f"{taught}, and only these, need the dense model as `teacher`", "teacher")
    if unknown := {*distillation} - WEIGHTS:
        raise UnknownNameError("weight of a distillation", min(unknown), sorted(WEIGHTS), "distillation")
    if distillation and "distill" not in ways:
        raise InvalidValueError("`distillation` sets the weights of `way` distill", "distillation")
    for one in (x for x in (model, teacher) if isinstance(x, (str, Path))):
        check_holds_model(Path(one))


def _loss(way: str, teacher: Any, kind: str, name: str, distillation: Mapping[str, float]) -> Any:
    """Return the loss of a way, or of several in order."""
    made: dict[str, Any] = {}
    for one in way.split(","):
        weights = distillation if one == "distill" else {}
        made[one] = LOSSES[one](teacher, kind=kind, name=name, **weights) if one in LOSSES else model_loss
    return Stages(made) if len(made) > 1 else made[way]


def _open_teacher(session: Session, teacher: Any, on_progress: OnProgress) -> OpenedModel:
    on_progress(Progress("loading the teacher"))
    tokenizer = session.tokenizer if not isinstance(teacher, (str, Path)) else None
    opened = open_model(
        teacher, session.task, trust_remote_code=session.trust_remote_code, tokenizer=tokenizer
    )
    if opened.tokenizer.get_vocab() != session.tokenizer.get_vocab():
        raise UnsupportedError(
            f"{opened.name} has another vocabulary than the pruned model, so it cannot teach it"
        )
    theirs, ours = opened.model.config.id2label, session.model.config.id2label
    if session.task.kind == "classification" and _named(theirs) != _named(ours):
        raise UnsupportedError(f"{opened.name} numbers its classes {theirs}, the pruned model {ours}")
    warn_if_equal(session.model, opened.model)
    return opened


def _named(classes: Mapping[int, str]) -> dict[int, str]:
    """Return the names of classes; those that are only numbered, as transformers does it, as numbers."""
    return {number: str(number) if name == f"LABEL_{number}" else name for number, name in classes.items()}
