"""The verbs as functions: train, score, compare, prune, recover, evaluate, measure, report, export.

A model is a name, a folder or a live `PreTrainedModel` (with `tokenizer=`); a task is a name, a file, a
`datasets.DatasetDict` or a `Task`. Verbs return outcomes that print themselves, and never print.
`**options` are those of `SessionOptions`: splits, columns, lengths, seeds, precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from .core import distributed
from .core.errors import FolderError, InvalidValueError
from .core.progress import OnProgress, Progress, ignore
from .experiment.assessment import assess, assess_run
from .experiment.latency import measure_models
from .experiment.levels import check_groups, parse_levels
from .experiment.manifest import begun_precision, check_folder, check_processes
from .experiment.method import Method, parse_method, parse_methods, parse_target
from .experiment.model import check_holds_model, check_output
from .experiment.prune import check_pruning, prune_session
from .experiment.recovery import Recovery
from .experiment.runner import run_comparison
from .experiment.scorer import score_facts, score_session
from .experiment.session import AnyModel, AnyTask, SessionOptions, open_session
from .experiment.trainer import check_recovery, note_dtype, recover_session, train_model
from .exporters.plain import export
from .io.files import read_json
from .io.paths import CONFIG, ROWS, RUN
from .reports import outcome
from .reports.outcome import Comparison, ModelOutcome, Outcome, ScoreOutcome
from .reproductions.greedy_gnorm.pooling import write_pooling
from .reproductions.sources import make_report, open_recipe

__all__ = ["compare", "evaluate", "export", "measure", "prune", "recover", "report", "score", "train"]
DEFAULT_METHOD = {"heads": "gnorm", "weights": "magnitude"}
DEFAULT_METHOD |= dict.fromkeys(("neurons", "slots"), "taylor:static")


def train(
    model: AnyModel,
    task: AnyTask,
    folder: str | Path | None = None,
    *,
    epochs: int = 3,
    batch_size: int = 32,
    lr: float = 5e-5,
    examples: int | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = ignore,
    **options: Unpack[SessionOptions],
) -> ModelOutcome:
    """Fine-tune a model, cut or not, and save it. A killed training resumes in its folder.

    >>> tuned = espalier.train("minilm", "demo", "tuned", epochs=2, lr=1e-4)
    """
    how: Any = dict(epochs=epochs, batch_size=batch_size, lr=lr, examples=examples, overwrite=overwrite)
    place = _path(folder)
    trained, facts = train_model(model, task, place, options, on_progress=on_progress, **how)
    return ModelOutcome(facts, [outcome.history_table(facts)], folder=place, model=trained)


def score(
    model: AnyModel,
    task: AnyTask,
    method: str | None = None,
    *,
    target: str = "heads",
    on_progress: OnProgress = ignore,
    **options: Unpack[SessionOptions],
) -> ScoreOutcome:
    """Score every unit of a model by one method on training examples; bigger means keep."""
    target, also = parse_target(target)
    chosen = parse_method(method or DEFAULT_METHOD[target], target, also=also)
    session = open_session(model, task, target=target, also=also, on_progress=on_progress, **options)
    on_progress(Progress("scoring"))
    scores = score_session(session, chosen)
    facts = score_facts(session, chosen, scores)
    return ScoreOutcome(facts, [outcome.scores_table(facts, scores)], scores=scores)


def compare(
    model: AnyModel | None = None,
    task: AnyTask | None = None,
    methods: str | Sequence[str | Method] | None = None,
    *,
    target: str = "heads",
    remove: float | str | Sequence[float] | None = None,
    folder: str | Path | None = None,
    tolerance: float = 0.01,
    epochs: int = 0,
    schedule: str | None = None,
    lr: float = 3e-5,
    batch_size: int = 32,
    examples: int | None = None,
    mask_interval: int | None = None,
    step: int | str | None = None,
    every: int | None = None,
    recipe: str | None = None,
    all_scores: bool = False,
    figures: bool = True,
    on_progress: OnProgress = ignore,
    **options: Unpack[SessionOptions],
) -> Comparison:
    """Measure every method at every level on validation, and the chosen levels on test. Killed runs resume.

    With `epochs` every level is also recovered by a training after pruning; with a `schedule` it is also
    pruned gradually during one. `remove` is the last level of heads and neurons, or a list of levels;
    they are scored again after `step` units and measured after `every`, unless a method says otherwise.

    >>> run = espalier.compare("tuned", "demo", ["gnorm", "taylor", "random:25"], folder="run")
    """
    target, also = parse_target(target)
    named = open_recipe(recipe) if recipe else None
    asked = named.methods if named and methods is None else methods
    chosen = parse_methods(asked, target, trained=epochs > 0, also=also, step=step, every=every)
    levels = parse_levels(remove, target)
    check_groups(chosen, levels, schedule)
    check_processes(target, folder)
    recovery = Recovery(epochs, examples, batch_size, lr, schedule, mask_interval) if epochs else None
    if not epochs and (schedule or examples or mask_interval):
        raise InvalidValueError("`schedule`, `examples` and `mask_interval` need `epochs`", "epochs")
    pair: Any = (model, task)
    if (named is None and None in pair) or (named is not None and task is not None):
        raise InvalidValueError("give a `model` and a `task`, or a `recipe`, which has its own task", "task")
    opening: Any = dict(target=target, also=also, on_progress=on_progress, **options)
    how: Any = dict(tolerance=tolerance, recovery=recovery, all_scores=all_scores, on_progress=on_progress)
    with nullcontext(folder) if folder else TemporaryDirectory() as place:
        where = Path(place)
        check_folder(where)
        opening["precision"] = begun_precision(where, options.get("precision", "fp32"))
        session = named.session(model, **opening) if named else open_session(*pair, **opening)
        run_comparison(session, chosen, where, remove=levels, **how)
        if distributed.leave_group():
            return Comparison({}, folder=where)
        write_pooling(session, where)
        shown: Any = dict(figures=figures, published=target == "heads" and session.task.metric == "accuracy")
        return make_report([where], where if folder else None, tolerance, **shown)


def prune(
    model: AnyModel,
    task: AnyTask,
    method: str | None = None,
    *,
    target: str = "heads",
    remove: float | None = None,
    tolerance: float | None = None,
    scope: str | None = None,
    folder: str | Path | None = None,
    run: str | Path | None = None,
    epochs: int = 0,
    on_progress: OnProgress = ignore,
    **more: Any,
) -> ModelOutcome:
    """Remove units by one method, measure before and after, and save the smaller model.

    `remove` is the fraction to remove; with `tolerance` as much is removed as validation allows. The order of
    heads and neurons comes from `run`, a finished comparison, if one is given. Weights are set to zero, in
    one shot. With `epochs` everything is pruned gradually while training, or by gates that are learned
    meanwhile (method gates); `more` are then lr, batch_size, examples, overwrite, untrained and, as far as
    the method has them, schedule, initial, until, mask_interval, ste, l1, penalty, form, delay, warmup, init,
    scaled, gate_lr. The rest of `more` are `SessionOptions`.

    >>> small = espalier.prune("tuned", "demo", "gnorm", tolerance=0.01, folder="small")
    >>> sparse = espalier.prune("tuned", "demo", "wanda", target="weights", scope="2:4", folder="sparse")
    >>> small = espalier.prune("tuned", "demo", "gates", remove=0.5, epochs=1, folder="small")
    """
    options: Any = {name: more.pop(name) for name in list(more) if name in SessionOptions.__annotations__}
    target, also = parse_target(target)
    chosen = parse_method(method or DEFAULT_METHOD[target], target, scope=scope, also=also)
    check_processes(target, folder or run)
    place, weights = _path(folder), target == "weights"
    amount: Any = dict(remove=remove, tolerance=tolerance, folder=place, run=_path(run), epochs=epochs)
    check_pruning(chosen, target, more, **amount)
    if place is not None and not epochs:
        check_output(place, model if isinstance(model, (str, Path)) else None)
    session = open_session(model, task, target=target, also=also, on_progress=on_progress, **options)
    small, facts = prune_session(session, chosen, on_progress=on_progress, **amount, **more)
    if not facts:
        return ModelOutcome({}, folder=place)
    notes = [note_dtype(session, epochs > 0)]
    if place is not None:
        notes += [f"The model is in {place}. Load it: espalier.load({str(place)!r})"]
        notes += ["A smaller file, without the zeros: espalier.save(model, folder, sparse=True)"] * weights
    return ModelOutcome(facts, outcome.pruning_tables(facts), [n for n in notes if n], place, small)


def recover(
    model: AnyModel,
    task: AnyTask,
    folder: str | Path | None = None,
    *,
    way: str = "finetune",
    teacher: AnyModel | None = None,
    epochs: int = 1,
    batch_size: int = 32,
    lr: float = 3e-5,
    examples: int | None = None,
    overwrite: bool = False,
    distillation: Mapping[str, float] | None = None,
    on_progress: OnProgress = ignore,
    **options: Unpack[SessionOptions],
) -> ModelOutcome:
    """Train a pruned model again, or distill the dense one into it. What is pruned stays pruned.

    `distillation` may set temperature, soft_weight and hidden_weight.

    >>> espalier.recover("sparse", "demo", "recovered", way="distill", teacher="tuned")
    """
    check_recovery(way, teacher, distillation or {})
    place = _path(folder)
    for one in (x for x in (model, teacher) if isinstance(x, (str, Path))):
        check_holds_model(Path(one))
    options["calibration"] = 1
    session = open_session(model, task, target="weights", on_progress=on_progress, **options)
    how: Any = dict(epochs=epochs, batch_size=batch_size, lr=lr, examples=examples, overwrite=overwrite)
    how |= dict(way=way, teacher=teacher, distillation=distillation, on_progress=on_progress)
    facts = recover_session(session, place, **how)
    notes = [n for n in (note_dtype(session, True), f"The model is in {place}." if place else "") if n]
    return ModelOutcome(facts, [outcome.before_and_after(facts)], notes, place, session.model)


def evaluate(
    model: AnyModel,
    task: AnyTask,
    *,
    of: AnyModel | None = None,
    tolerance: float = 0.01,
    on_progress: OnProgress = ignore,
    **options: Unpack[SessionOptions],
) -> Outcome:
    """Measure a model on validation and test data, with intervals, and count it.

    If `model` is the folder of a comparison, the model that each method chose is measured; `of` is the
    model that the comparison was made with.
    """
    run = Path(model) if isinstance(model, (str, Path)) else None
    options["calibration"] = 1
    if run is None or not (run / ROWS).is_file():
        if of is not None:
            raise InvalidValueError(f"`of` is for the folder of a comparison, and {model} is none", "of")
        session = open_session(model, task, target="weights", on_progress=on_progress, **options)
        on_progress(Progress("evaluating"))
        found = assess(session, session.model, folder=session.folder)
        facts = {"model": session.name, "task": session.task.name, **found}
        return Outcome(facts, outcome.assessment_tables(facts))
    raw = read_json(run / RUN)
    target = str(raw.get("target") or raw.get("kind"))
    if of is None or target == "weights":
        hint = "make the model with espalier.prune" if target == "weights" else "name its model in `of`"
        raise FolderError(f"{run} is a comparison and holds no weights: {hint}", run)
    session = open_session(of, task, target=target, on_progress=on_progress, **options)
    facts = {"run": run.name, "model": session.name, "task": session.task.name, "tolerance": tolerance}
    facts["points"] = assess_run(session, run, tolerance)
    return Outcome(facts, [outcome.points_table(facts)])


def measure(
    model: AnyModel | Sequence[AnyModel],
    against: AnyModel | None = None,
    *,
    batch_size: int = 1,
    max_length: int = 128,
    rounds: int = 20,
) -> Outcome:
    """Measure latency of saved or live models, interleaved in one run, and count them."""
    several = list(model) if isinstance(model, (list, tuple)) else [model]
    facts = measure_models(several, against, batch_size=batch_size, max_length=max_length, rounds=rounds)
    return Outcome(facts, [outcome.latency_table(facts)])


def report(
    sources: str | Path | Sequence[str | Path],
    folder: str | Path | None = None,
    *,
    tolerance: float | None = None,
    points: Mapping[str, int] | None = None,
    figures: bool = True,
    published: bool = False,
) -> Comparison:
    """Turn results into tables and figures: run folders, or files in the published schema. Needs no model."""
    paths = [Path(one) for one in ([sources] if isinstance(sources, (str, Path)) else sources)]
    for path in paths:
        if (path / CONFIG).is_file():
            raise FolderError(f"{path} is a model, not a run: measure it with espalier.evaluate", path)
    own = paths[0] if len(paths) == 1 and (paths[0] / RUN).is_file() else Path("report")
    return make_report(paths, _path(folder) or own, tolerance, points, figures=figures, published=published)


def _path(folder: str | Path | None) -> Path | None:
    return None if folder is None else Path(folder)
