"""The verbs as functions: train, score, compare, prune, recover, evaluate, measure, report, export.

A model is a name, a folder or a live `PreTrainedModel` (with `tokenizer=`); a task is a name, a file, a
`DatasetDict` or a `Task`. Verbs return outcomes and never print. `**options` are those of `SessionOptions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from .analysis.tolerance import parse_tolerance
from .core import distributed
from .core.errors import InvalidValueError
from .core.progress import OnProgress, Progress, ignore
from .experiment.assessment import assess, assess_run, check_run_target, find_chance
from .experiment.latency import measure_models
from .experiment.levels import check_groups, parse_levels
from .experiment.manifest import begun_precision, check_folder, check_processes
from .experiment.method import Method, parse_method, parse_methods, parse_target
from .experiment.model import check_holds_model
from .experiment.pruner import DEFAULT_METHOD, prune_model
from .experiment.recovery import recovery_of
from .experiment.runner import run_comparison
from .experiment.scorer import score_facts, score_session
from .experiment.session import AnyModel, AnyTask, SessionOptions, open_session
from .experiment.trainer import check_recovery, recover_session, saved_notes, train_model
from .experiment.verb import verb
from .exporters.plain import export as export_plain
from .io.paths import ROWS, RUN, named_path, optional_path
from .reports import outcome
from .reports.outcome import Comparison, ModelOutcome, Outcome, ScoreOutcome
from .reproductions.budget_recipe import fill
from .reproductions.greedy_gnorm.pooling import write_pooling
from .reproductions.sources import make_report, open_recipe

__all__ = ["compare", "evaluate", "export", "measure", "prune", "recover", "report", "score", "train"]
export = verb(export_plain)


@verb
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
    place, how["on_progress"] = optional_path(folder), on_progress
    trained, facts = train_model(model, task, place, options, **how)
    return ModelOutcome(facts, [outcome.history_table(facts)], folder=place, model=trained)


@verb
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


@verb
def compare(
    model: AnyModel | None = None,
    task: AnyTask | None = None,
    methods: str | Sequence[str | Method] | None = None,
    *,
    target: str = "heads",
    remove: float | str | Sequence[float] | None = None,
    folder: str | Path | None = None,
    tolerance: float | str = 0.01,
    epochs: int = 0,
    schedule: str | None = None,
    lr: float = 3e-5,
    batch_size: int = 32,
    examples: int | None = None,
    mask_interval: int | None = None,
    step: int | str | None = None,
    every: int | None = None,
    recipe: str | None = None,
    trust: bool = False,
    all_scores: bool = False,
    figures: bool = True,
    on_progress: OnProgress = ignore,
    **options: Unpack[SessionOptions],
) -> Comparison:
    """Measure every method at every level on validation, and the chosen levels on test. Killed runs resume.

    With `epochs` every level is also recovered by a training after pruning; with a `schedule` it is also
    pruned gradually during one. `remove` is the last level of heads and neurons, or a list of levels;
    they are scored again after `step` units and measured after `every`, unless a method says otherwise.
    The chosen level lies within `tolerance` of the unpruned model: 0.01 or "1pt" of the metric, or "1%" of
    the model's own value. Python files that a `recipe` names are run only with `trust`.

    >>> run = espalier.compare("tuned", "demo", ["gnorm", "taylor", "random:25"], folder="run")
    """
    tolerance, (target, also) = parse_tolerance(tolerance), parse_target(target)
    named = open_recipe(recipe, trust=trust) if recipe else None
    asked = named.methods if named and methods is None else methods
    chosen = parse_methods(asked, target, trained=epochs > 0, also=also, step=step, every=every)
    check_groups(chosen, levels := parse_levels(remove, target), schedule)
    check_processes(target, folder)
    recovery = recovery_of(epochs, examples, batch_size, lr, schedule, mask_interval)
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


@verb
def prune(
    model: AnyModel,
    task: AnyTask,
    method: str | None = None,
    *,
    macs: float | str | None = None,
    params: float | str | None = None,
    speedup: float | str | None = None,
    latency: str | None = None,
    size: str | None = None,
    tolerance: float | str | None = None,
    repair: str | None = None,
    target: str = "auto",
    remove: float | None = None,
    scope: str | None = None,
    folder: str | Path | None = None,
    run: str | Path | None = None,
    recipe: str | None = None,
    epochs: int = 0,
    on_progress: OnProgress = ignore,
    **more: Any,
) -> ModelOutcome:
    """Make a model smaller, measure before and after, and save it.

    With a budget (`macs` or `params`, fractions that are kept; `speedup` 2, `latency` "5ms", `size` "40MB";
    or `tolerance`, how much validation may lose) heads and neurons are removed together and the rest is
    repaired: `repair` is refit, scale, bias or none. "1.5,2,3" makes one model for each; a `recipe` is a
    paper's way, except for what is given. Otherwise `remove` is the fraction of one `target` to remove by one
    `method`, or `tolerance` limits it; `run` is a finished comparison with the order. Weights are set to
    zero, in one shot, or with `epochs` gradually while training; with `epochs` heads and neurons are pruned
    while training too, or by gates that are learned meanwhile (method gates). `overwrite` replaces another
    model in the folder; docs/budgets.md, docs/weights.md and docs/gates.md describe the rest of `more`,
    besides `SessionOptions`.

    >>> small = espalier.prune("tuned", "demo", speedup=2, folder="small")
    >>> small = espalier.prune("tuned", "demo", "gnorm", tolerance=0.01, folder="small")
    >>> sparse = espalier.prune("tuned", "demo", "wanda", target="weights", scope="2:4", folder="sparse")
    >>> small = espalier.prune("tuned", "demo", "gates", remove=0.5, epochs=1, folder="small")
    """
    budgets = dict(macs=macs, params=params, speedup=speedup, latency=latency, size=size)
    how: Any = dict(method=method, target=target, tolerance=tolerance, repair=repair, **more)
    how = how if recipe is None else fill(recipe, how, budgets)
    place = how["folder"] = optional_path(folder)
    how |= dict(remove=remove, scope=scope, run=optional_path(run), epochs=epochs, on_progress=on_progress)
    small, facts, notes = prune_model(model, task, budgets=budgets, **how)
    if not facts:
        return ModelOutcome({}, folder=place)
    return ModelOutcome(facts, outcome.pruned_tables(facts), notes, place, small)


@verb
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
    place = optional_path(folder)
    check_recovery(way, teacher, distillation or {})
    for one in (x for x in (model, teacher) if isinstance(x, (str, Path))):
        check_holds_model(Path(one))
    options["calibration"] = 1
    session = open_session(model, task, target="weights", on_progress=on_progress, **options)
    how: Any = dict(epochs=epochs, batch_size=batch_size, lr=lr, examples=examples, overwrite=overwrite)
    how |= dict(way=way, teacher=teacher, distillation=distillation, on_progress=on_progress)
    facts = recover_session(session, place, **how)
    notes = saved_notes(session, place, trained=True)
    return ModelOutcome(facts, [outcome.before_and_after(facts)], notes, place, session.model)


@verb
def evaluate(
    model: AnyModel,
    task: AnyTask,
    *,
    of: AnyModel | None = None,
    tolerance: float | str = 0.01,
    on_progress: OnProgress = ignore,
    **options: Unpack[SessionOptions],
) -> Outcome:
    """Measure a model on validation and test data, with intervals, and count it.

    If `model` is the folder of a comparison, the model that each method chose is measured; `of` is the
    model that the comparison was made with.
    """
    run = named_path(model, "model") if isinstance(model, (str, Path)) else None
    tolerance = parse_tolerance(tolerance)
    options["calibration"] = 1
    if run is None or not (run / ROWS).is_file():
        if of is not None:
            raise InvalidValueError(f"`of` is for the folder of a comparison, and {model} is none", "of")
        session = open_session(model, task, target="weights", on_progress=on_progress, **options)
        on_progress(Progress("evaluating"))
        found = assess(session, session.model, folder=session.folder, base=True)
        chance = find_chance(session, found, session.name)
        facts = {"model": session.name, "task": session.task.name, **found, **chance}
        return Outcome(facts, outcome.assessment_tables(facts))
    target = check_run_target(run, of)
    session = open_session(of, task, target=target, on_progress=on_progress, **options)  # type: ignore[arg-type]
    facts = {"run": run.name, "model": session.name, "task": session.task.name, "tolerance": tolerance}
    facts["points"] = assess_run(session, run, tolerance)
    return Outcome(facts, [outcome.points_table(facts)])


@verb
def measure(
    model: AnyModel | Sequence[AnyModel],
    against: AnyModel | None = None,
    *,
    batch_size: int = 1,
    max_length: int = 128,
    rounds: int = 20,
) -> Outcome:
    """Measure latency of saved or live models, interleaved in one run, and count them."""
    several = model if isinstance(model, (list, tuple)) else [model]
    facts = measure_models(several, against, batch_size=batch_size, max_length=max_length, rounds=rounds)
    return Outcome(facts, [outcome.latency_table(facts)])


@verb
def report(
    sources: str | Path | Sequence[str | Path],
    folder: str | Path | None = None,
    *,
    tolerance: float | str | None = None,
    points: Mapping[str, int] | None = None,
    figures: bool = True,
    published: bool = False,
) -> Comparison:
    """Turn results into tables and figures: run folders, or files in the published schema. Needs no model."""
    paths = [Path(one) for one in ([sources] if isinstance(sources, (str, Path)) else sources)]
    own = paths[0] if len(paths) == 1 and (paths[0] / RUN).is_file() else Path("report")
    near = None if tolerance is None else parse_tolerance(tolerance)
    shown: Any = dict(figures=figures, published=published)
    return make_report(paths, optional_path(folder) or own, near, points, **shown)
