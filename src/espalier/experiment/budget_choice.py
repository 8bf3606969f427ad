"""How the units of a budget are chosen: what scores them, compares masks and fits sublayers on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..architectures.sites import sites as find_sites
from ..core.batches import model_inputs
from ..core.mask import Mask
from ..core.progress import Progress
from ..core.terminal import by_template, logged_once, muted
from ..engine.cache import BUDGET as CACHE
from ..engine.cache import ActivationCache
from ..engine.gate_gradients import batch_gradients
from ..engine.passes import frozen_eval
from ..engine.settled import settled_below
from ..pruning.lookahead import race
from ..pruning.path import BudgetPath
from ..pruning.repair import repair
from ..pruning.sublayers import SublayerPath
from .budget import Currency

if TYPE_CHECKING:
    from .prune_budget import BudgetRun

STAGES, SUBLAYERS = SEARCHES = ("stages", "sublayers")
BATCH = 32  # examples whose gradients are taken together to rearrange units, as published


def make_path(run: BudgetRun, currency: Currency) -> BudgetPath | SublayerPath:
    """Return the way to masks, on which units are scored as budgets need it."""
    session, method, options = run.session, run.method, run.options
    own = session.calibration_of(method.criterion)
    batches = own.uncached()  # no cache: every stage is another copy
    known: dict[int, Tensor] = {}
    # what the blocks below a sublayer gave: to its scores, to its repair, and in the unpruned model
    scored, fitted, followed = caches = [ActivationCache(CACHE // 3) for _ in range(3)]

    def score(model: Any, found: Sequence[Any]) -> Mapping[str, Any]:
        done, total = path.progress
        units = sum(site.units for site in found)
        run.on_progress(Progress("scoring", done, total, f"scoring stage {done + 1}: {units} units"))
        below = settled_below(scored, model, getattr(found[0], "block", None), batches)
        with session.arithmetic(), below:
            scores = method.loaded(model, found, batches, **method.options)
        return {name: -value for name, value in scores.items()} if method.reverse else scores

    def gradients(model: Any, found: Sequence[Any]) -> Mapping[str, Any]:
        run.on_progress(Progress("scoring", *path.progress, "gradients to rearrange units by"))
        with session.arithmetic(), frozen_eval(model):
            return batch_gradients(model, found, batches, BATCH)

    def predict(number: int) -> Tensor:
        if number in known:
            return known[number]
        with torch.no_grad(), frozen_eval(session.model):
            logits: Tensor = session.model(**model_inputs(session.calibration[number])).logits
        if logits.dim() == 2:  # of a classifier; those of tokens would take too much memory
            known[number] = logits
        return logits

    def best(model: Any, found: Sequence[Any], masks: Sequence[Mask]) -> int:
        run.on_progress(Progress("scoring", *path.progress, f"comparing {len(masks)} masks"))
        with session.arithmetic():
            return race(model, found, masks, session.calibration, predict)[0]

    def fit(model: Any) -> None:
        done, total = path.progress
        run.on_progress(Progress("scoring", done, total, f"repairing stage {done + 1}"))
        with muted():  # on fewer examples than the repair that counts, which says what there is to say
            repair(model, session.model, session.calibration, options.repair)

    def fit_one(model: Any, name: str) -> None:
        run.on_progress(Progress("scoring", *path.progress, f"repairing {name}"))
        block, other = (
            next(s.block for s in find_sites(one) if s.name == name) for one in (model, session.model)
        )
        with (
            logged_once(run.logged, by_template),
            settled_below(fitted, model, block, session.calibration),
            settled_below(followed, session.model, other, session.calibration),
        ):
            repair(model, session.model, session.calibration, options.repair, only=[name])

    path: BudgetPath | SublayerPath
    given = (session.model, run.sites, score, currency.costs)
    how: Any = {"multiple": options.multiple, "least_heads": options.least_heads}
    if options.search == SUBLAYERS:
        path = SublayerPath(*given, fit_one, caches, **how)
        return path
    how |= {"fit": fit if run.repairs_stages else None, "best": best}
    how |= {"gradients": gradients if options.rearrange else None}
    how |= {"lookahead": options.lookahead, "stage": run.stage if method.rescore else 0.0}
    path = BudgetPath(*given, **how)
    return path
