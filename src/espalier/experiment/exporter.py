"""Export a model to a runtime: traced, compared with torch, quantised, and evaluated on test data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..analysis.bootstrap import QUANTILES, change_draws
from ..core.errors import InvalidValueError
from ..core.progress import OnProgress, Progress, ignore
from ..evaluation import metrics
from ..evaluation.predictions import pack
from ..exporters.exported import open_exported
from ..exporters.folder import check_target, ranges_of, write_export
from ..exporters.plain import export as export_plain
from ..io.files import reading
from ..storage.resolve import check_size, config_of, model_class, weights_path
from .assessment import measure_split, predict_split
from .exported import tokenizer_of
from .model import check_holds_model, short_name
from .output import check_not_source
from .session import TEST, AnyModel, AnyTask, Session, open_session

CALIBRATION = 128  # training examples that ranges of activations are taken from


def export_model(
    model: AnyModel,
    folder: Path,
    to: str,
    task: AnyTask | None = None,
    *,
    int8: bool = False,
    ranges: str | None = None,
    kv_cache: bool = True,
    tokenizer: Any = None,
    overwrite: bool = False,
    max_shard_size: str | int | None = None,
    on_progress: OnProgress = ignore,
    **options: Any,
) -> dict[str, Any]:
    """Export to a runtime; return the record, with predictions on test data if there is a task."""
    check_target(to)
    if to == "plain":
        check_plain(int8, task, options if kv_cache else {**options, "kv_cache": False})
        given = {"max_shard_size": max_shard_size} if max_shard_size else {}
        on_progress(Progress("exporting", message="writing a plain checkpoint"))
        place = export_plain(model, folder, tokenizer=tokenizer, overwrite=overwrite, **given)
        return {"to": to, "folder": str(place)}
    chosen = ranges_of(to, int8, ranges, task is not None)
    check_not_source(folder, model)
    if task is None and options:
        raise InvalidValueError(
            f"`{min(options)}` is about the examples of a `task`, and none is given", "task"
        )
    session: Session | None = None
    if task is not None:
        options.setdefault("calibration", CALIBRATION)
        how: Any = {"tokenizer": tokenizer, **options}
        session = open_session(model, task, target="weights", on_progress=on_progress, **how)
        loaded, tokenizer, name, source = session.model, session.tokenizer, session.name, session.folder
    else:
        on_progress(Progress("loading the model"))
        loaded, tokenizer, name, source = _open(model, tokenizer)

    def finish(place: Path, record: dict[str, Any]) -> None:
        if session is not None:
            record |= compare_predictions(session, open_exported(place), on_progress)

    about: Any = dict(tokenizer=tokenizer, source=source, name=name, ranges=chosen, overwrite=overwrite)
    about |= dict(kv_cache=kv_cache, on_progress=on_progress)
    about |= dict(calibration=session.calibration if session else None, finish=finish)
    return {**write_export(loaded, folder, to, **about), "folder": str(folder)}


def check_plain(int8: bool, task: object, options: Mapping[str, Any]) -> None:
    """Raise for what a plain checkpoint has no use for."""
    for name in ("int8" if int8 else "", "task" if task is not None else "", *options):
        if name:
            raise InvalidValueError(f"`{name}` is for a runtime: say `to` onnx or openvino with it", name)


def compare_predictions(session: Session, exported: Any, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Return what torch and the exported model are worth on test data, and the paired change."""
    metric, truth = metrics.load(session.task.metric), session.truth(TEST)
    both = {"torch": session.model, "the exported model": exported}
    before, after = (predict_split(session, one, TEST, on_progress, what) for what, one in both.items())
    values = [session.metrics(one, TEST)[metric.name] for one in (before, after)]
    change: dict[str, float | None] = dict.fromkeys(("value", "low", "high"))
    if None not in values:
        draws = change_draws(metric.name, truth, before.values, after.values)
        low, high = np.quantile(draws, QUANTILES).tolist()
        first, second = (metric.score(float(value)) for value in values if value is not None)
        change = {"value": second - first, "low": low, "high": high}
    found = {}
    for name, one in {"torch": before, "exported": after}.items():
        given = {"metrics": session.metrics(one, TEST), "n": len(one.values)}
        row = SimpleNamespace(**given, predictions=pack(one.values, session.task.kind))
        found[name] = measure_split(session, None, TEST, row)
    classes = session.task.kind == "classification"
    agree = float((before.values == after.values).mean()) if classes else None
    return {"task": session.task.name, **found, "change": change, "same_predictions": agree}


def _open(model: AnyModel, tokenizer: Any) -> tuple[Any, Any, str, Path | None]:
    """Return a model in the class of its config, its tokenizer if it has one, its name and folder."""
    import torch

    if not isinstance(model, (str, Path)):
        return model, tokenizer, type(model).__name__, None
    loaded = load_any(model, dtype=torch.float32)
    path = Path(weights_path(str(model)))
    tokenizer = tokenizer_of(model, tokenizer)
    return loaded, tokenizer, short_name(str(model)), path if path.is_dir() else None


def load_any(name: str | Path, **options: Any) -> Any:
    """Load a model without a task: in the class that its config names, and in the dtype of its file."""
    import transformers

    check_holds_model(Path(name))
    path = weights_path(str(name))
    check_size(Path(path))
    cls = model_class(config_of(path, allow_type=False).architectures) or transformers.AutoModel
    with reading(Path(name), "a model that can be loaded", Exception):  # each library has its own errors
        return cls.from_pretrained(path, **options).eval()
