"""What to do with a model that was made: where it is, and the calls or commands that come next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..core.call import is_command, spell
from ..engine.token_places import dropper_of
from ..tasks.task import SIMILARITY
from .classes import CHOSEN
from .new_model import is_new
from .session import Session

RECOVERED, EXPORTED = "recovered", "exported"  # the folders that are proposed
USUAL_LENGTH = 128  # of all verbs, so that it need not be said


def after_training(folder: Path | None, model: Any, task: Any, options: Mapping[str, Any]) -> list[str]:
    """Say how to evaluate a model that was trained, and how to make it smaller."""
    if folder is None:
        return []
    about = {"task": task, **{name: options.get(name) for name in CHOSEN}}
    about |= _length(options.get("max_length", USUAL_LENGTH))
    steps = [f"Evaluate it: {spell('evaluate', folder, **about)}"]
    if not is_new(model):
        steps.append(f"make it smaller: {spell('prune', folder, **about, tolerance='1%')}")
    return ["; ".join(steps)]


def export_step(folder: Path | str | None, *models: Any) -> str | None:
    """Return the call that ships a saved model; none for what ONNX cannot: tokens that go, two inputs."""
    if folder is None or any(dropper_of(one) is not None or _decodes(one) for one in models):
        return None
    return spell("export", folder, to="onnx", folder=EXPORTED)


def after_pruning(
    folder: Path | str | None, model: Any, task: Any, session: Session, small: Any = None
) -> list[str]:
    """Say how to time and to ship a pruned model, and how to train what is left of the gap."""
    if folder is None:
        return []
    trainer = "sentence-transformers"
    if session.task.kind != SIMILARITY:
        about = {"task": task, **session.columns, **_length(session.max_length)}
        units = {"heads", "neurons"} >= set(session.target.split(","))
        way = {"way": "blockwise", "teacher": model} if units and dropper_of(session.model) is None else {}
        trainer = spell("recover", folder, **about, **way, folder=RECOVERED)
    steps = [f"Time it: {spell('measure', folder, against=model, **_length(session.max_length))}"]
    if ship := export_step(folder, session.model, *([] if small is None else [small])):
        steps.append(f"ship it: {ship}")
    trainable = session.task.train.labels is not None or session.task.kind == "language"
    if trainable and not session.unlabelled:  # training is judged by labels
        steps.append(f"train what is left of the gap: {trainer}")
    return ["; ".join(steps)]


def _decodes(model: Any) -> bool:
    return bool(getattr(model.config, "is_encoder_decoder", False))


def _length(tokens: int) -> dict[str, int]:
    return {} if tokens == USUAL_LENGTH else {"max_length": tokens}


def saved_notes(
    session: Session,
    folder: Path | None,
    *,
    trained: bool,
    sparse: bool = False,
    of: tuple[Any, Any] | None = None,
    small: Any = None,
) -> list[str]:
    """Say where a model was saved, how to load it, and if it takes twice as much as before.

    `of` are the model and the task that a pruned one, `small`, was made of.
    """
    notes = []
    if trained and session.stored != torch.float32:
        dtype = str(session.stored).removeprefix("torch.")
        notes.append(f"It was stored in {dtype} and is saved in float32: trained weights need the precision.")
    if folder is not None:
        load = "" if is_command() else f" Load it: espalier.load({str(folder)!r})"
        notes.append(f"The model is in {folder}.{load}")
    if folder is not None and sparse:
        file = "espalier.save(model, folder, sparse=True)"
        file = spell("encode", folder, folder=f"{folder}-encoded") if is_command() else file
        notes.append(f"A smaller file, without the zeros: {file}")
    return notes + (after_pruning(folder, *of, session, small) if of else [])
