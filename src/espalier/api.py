"""The verbs as functions: train, score, compare, prune, recover, evaluate, measure, report, export, push.

A model is a name, a folder or a live `PreTrainedModel` (with `tokenizer=`); a task is a name, a file, a
`DatasetDict` or a `Task`. Verbs return outcomes and never print. `**options` are those of `SessionOptions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from .analysis.curves import parse_tolerance
from .core import distributed
from .core.errors import InvalidValueError
from .core.progress import OnProgress, Progress, ignore
from .experiment.assessment import evaluate_model
from .experiment.estimate import estimate_comparison
from .experiment.levels import check_groups, parse_levels
from .experiment.manifest import begun_precision, check_folder, check_processes
from .experiment.method import Method, parse_method, parse_methods, parse_target
from .experiment.next_steps import after_training
from .experiment.pruner import DEFAULT_METHOD, prune_model
from .experiment.recover_model import RecoverOptions, recover_model
from .experiment.recovery import recovery_of
from .experiment.runner import run_comparison
from .experiment.scorer import score_facts, score_session
from .experiment.session import AnyModel, AnyTask, SessionOptions, open_session
from .experiment.trainer import TrainOptions, train_model
from .experiment.verb import verb
from .exporters.push import push as push_folder
from .io.paths import optional_path
from .reports import measurement, outcome
from .reports.budgets import verdict_lines
from .reports.card import write_cards
from .reports.estimate import estimate_tables
from .reports.outcome import Comparison, ModelOutcome, Outcome, ScoreOutcome
from .reproductions.all_attention.steps import do_steps
from .reproductions.budget_recipe import fill
from .reproductions.setup import run_setup
from .reproductions.sources import make_report, open_recipe, own_folder

RECIPES = ("compare", "evaluate", "prune", "recover", "report", "score", "train")  # verbs that take one
__all__ = [*RECIPES, "export", "measure", "push", "reproduce", "run"]
export, measure = verb(measurement.export), verb(measurement.measure)
push, reproduce = verb(push_folder), verb(do_steps)


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
    track: str | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    on_progress: OnProgress = ignore,
    **options: Unpack[TrainOptions],
) -> ModelOutcome:
    """Fine-tune a model, cut or not, and save it. A killed training resumes; `dry_run` only says how long.

    A model type of our own, or a config without weights, is trained from scratch on a corpus of words; values
    of its config are options too. `TrainOptions` has those of the loop, such as `lr_schedule`.

    >>> tuned = espalier.train("minilm", "demo", "tuned", epochs=2, lr=1e-4)
    """
    how: Any = dict(epochs=epochs, batch_size=batch_size, lr=lr, examples=examples, overwrite=overwrite)
    place, how["track"], how["on_progress"] = optional_path(folder), track, on_progress
    trained, facts = train_model(model, task, place, options, dry_run=dry_run, **how)
    tables = estimate_tables(facts) if dry_run else [outcome.history_table(facts)]
    notes = ["Nothing was written."] if dry_run else after_training(place, model, task, options)
    return ModelOutcome(facts, tables, notes, place, trained)


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
    how: Any = dict(also=also, unlabelled=True, on_progress=on_progress, **options)  # nothing is measured
    session = open_session(model, task, target=target, **how)
    on_progress(Progress("scoring"))
    facts = score_facts(session, chosen, scores := score_session(session, chosen))
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
    timed: bool = False,
    figures: bool = True,
    dry_run: bool = False,
    on_progress: OnProgress = ignore,
    **options: Unpack[SessionOptions],
) -> Comparison:
    """Measure every method at every level on validation, and the chosen levels on test. Killed runs resume.

    With `epochs` every level is also recovered by a training after pruning; with a `schedule` it is also
    pruned gradually during one. `remove` is the last level of heads and neurons, or a list of levels;
    they are scored again after `step` units and measured after `every`, unless a method says otherwise.
    The chosen level lies within `tolerance` of the unpruned model: 0.01 or "1pt" of the metric, or "1%" of
    the model's own value. Python files that a `recipe` names are run only with `trust`. `timed` also measures
    the latency of every model; `dry_run` says what would be done, and how long it should take.

    >>> run = espalier.compare("tuned", "demo", ["gnorm", "taylor", "random:25"], folder="run")
    """
    tolerance, (target, also) = parse_tolerance(tolerance), parse_target(target)
    named = open_recipe(recipe, trust=trust) if recipe else None
    asked = named.methods if named and methods is None else methods
    chosen = parse_methods(asked, target, trained=epochs > 0, also=also, step=step, every=every)
    check_groups(chosen, levels := parse_levels(remove, target), schedule)
    check_processes(target, folder)
    training = epochs or examples or schedule or mask_interval
    recovery = recovery_of(epochs, examples, batch_size, lr, schedule, mask_interval) if training else None
    pair: Any = (model, task)
    if (named is None and None in pair) or (named is not None and task is not None):
        raise InvalidValueError("give a `model` and a `task`, or a `recipe`, which has its own task", "task")
    how: Any = dict(target=target, also=also, on_progress=on_progress, **options)
    with nullcontext(folder) if folder and not dry_run else TemporaryDirectory() as place:
        check_folder(where := Path(place))
        how["precision"] = begun_precision(where, options.get("precision", "fp32"))
        session = named.session(model, **how) if named else open_session(*pair, **how)
        if dry_run:
            facts = estimate_comparison(session, chosen, levels, recovery, optional_path(folder), on_progress)
            return Comparison(facts, estimate_tables(facts), ["Nothing was written."])
        how = dict(tolerance=tolerance, recovery=recovery, all_scores=all_scores, timed=timed)
        run_comparison(session, chosen, where, remove=levels, on_progress=on_progress, **how)
        if distributed.leave_group():
            return Comparison({}, folder=where)
        how = dict(figures=figures, on_progress=on_progress, session=session)
        how["published"] = session.target == "heads" and session.task.metric == "accuracy"
        return make_report([where], where if folder else None, tolerance, **how)


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
    dry_run: bool = False,
    on_progress: OnProgress = ignore,
    **more: Any,
) -> ModelOutcome:
    """Make a model smaller, measure before and after, and save it.

    With a budget (`macs` or `params`, fractions that are kept; `speedup` 2, `latency` "5ms", `size` "40MB";
    or `tolerance`, how much validation may lose) heads and neurons are removed together and the rest is
    repaired: `repair` is refit, scale, bias or none. "1.5,2,3" makes one model for each; a `recipe` is a
    paper's way, except for what is given. Otherwise `remove` is the fraction of one `target` to remove by one
    `method`; `run`, a finished comparison, has the order. Weights are set to zero, in one shot, or with
    `epochs` gradually while training; with `epochs` heads and neurons are pruned while training too, or by
    gates that are learned meanwhile (method gates). `overwrite` replaces another model in the folder;
    `dry_run` says what a budget would take; `dtype` is what is saved. More in docs/: budgets, weights, gates.

    >>> small = espalier.prune("tuned", "demo", speedup=2, folder="small")
    >>> small = espalier.prune("tuned", "demo", tolerance=0.01, folder="small")
    >>> sparse = espalier.prune("tuned", "demo", "wanda", target="weights", scope="2:4", folder="sparse")
    """
    budgets = dict(macs=macs, params=params, speedup=speedup, latency=latency, size=size)
    how: Any = dict(method=method, target=target, tolerance=tolerance, repair=repair, **more)
    how = how if recipe is None else fill(recipe, how, budgets)
    place = how["folder"] = optional_path(folder)
    how |= dict(remove=remove, scope=scope, run=optional_path(run), epochs=epochs, on_progress=on_progress)
    small, facts, notes = prune_model(model, task, budgets=budgets, dry_run=dry_run, **how)
    if dry_run:
        return ModelOutcome(facts, estimate_tables(facts), notes, place)
    write_cards(facts, small, model, task, overwrite=bool(more.get("overwrite")))
    tables = outcome.pruned_tables(facts) if facts else []
    return ModelOutcome(facts, tables, notes, place, small if facts else None, verdicts=verdict_lines(facts))


@verb
def recover(
    model: AnyModel,
    task: AnyTask,
    folder: str | Path | None = None,
    *,
    way: str = "finetune",
    teacher: AnyModel | None = None,
    epochs: int = 1,
    batch_size: int | None = None,
    lr: float | None = None,
    examples: int | None = None,
    track: str | None = None,
    overwrite: bool = False,
    distillation: Mapping[str, float] | None = None,
    lora: int | None = None,
    on_progress: OnProgress = ignore,
    **options: Unpack[RecoverOptions],
) -> ModelOutcome:
    """Train a pruned model again, or distill the dense one into it. What is pruned stays pruned.

    `way` is finetune (labels), distill (also predictions and hidden states of the `teacher`, weighted by
    `distillation`: temperature, soft_weight, hidden_weight), blockwise (outputs of its sublayers), or several
    in order, each for `epochs`. `lora` is a rank. `batch_size` is 32, `lr` 3e-5; of blockwise alone 8, 2e-4.

    >>> espalier.recover("small", "demo", "recovered", way="blockwise,distill,finetune", teacher="tuned")
    """
    how: Any = dict(way=way, teacher=teacher, epochs=epochs, batch_size=batch_size, lr=lr, examples=examples)
    how |= dict(overwrite=overwrite, distillation=distillation, lora=lora, track=track)
    place, how["on_progress"] = optional_path(folder), on_progress
    recovered, facts, notes = recover_model(model, task, place, options, **how)
    write_cards(facts, recovered, model, task, overwrite=overwrite)
    return ModelOutcome(facts, outcome.recovered_tables(facts), notes, place, recovered)


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
    facts = evaluate_model(model, task, of, parse_tolerance(tolerance), options, on_progress)
    return Outcome(facts, outcome.evaluation_tables(facts))


@verb
def report(
    sources: str | Path | Sequence[str | Path],
    folder: str | Path | None = None,
    *,
    tolerance: float | str | None = None,
    points: Mapping[str, int] | None = None,
    figures: bool = True,
    published: bool = False,
    axis: str = "removed",
    on_progress: OnProgress = ignore,
) -> Comparison:
    """Turn run folders, or files in the published schema, into a page, tables and figures. Needs no model.

    A `folder` that ends in .html is the page alone. `axis` of figures: removed, parameters, macs or latency.
    """
    paths = [Path(one) for one in ([sources] if isinstance(sources, (str, Path)) else sources)]
    shown: Any = dict(figures=figures, published=published, axis=axis, on_progress=on_progress)
    return make_report(paths, optional_path(folder) or own_folder(paths), tolerance, points, **shown)


def run(recipe: str | Path, *, on_progress: OnProgress = ignore, **changes: Any) -> Outcome:
    """Run a recipe: a TOML file with a `verb` and those of its keywords that differ from their defaults.

    All mistakes of the file are named at once; `changes` replace what it says.
    """
    return run_setup(recipe, changes, {name: globals()[name] for name in RECIPES}, on_progress)
