"""The one loop of pruning: score, choose, yield. One-shot, greedy and gradual differ in their schedule.

It runs a working copy that is cut as masks remove units: a greedy loop runs smaller and smaller models.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch

from ..architectures.site import Site, WeightSite
from ..architectures.sites import sites as find_sites
from ..architectures.sites import unwrapped
from ..architectures.stack import StackSite
from ..core.batches import Batches
from ..core.mask import Mask, Scores
from ..core.types import PreTrainedModel
from ..engine.gates import masked
from ..selection.scopes import GLOBAL, remove_lowest
from .cut import cut

AnySites = Sequence[Site] | Sequence[StackSite] | Sequence[WeightSite]
Choose = Callable[[Scores, float, Mask], Mask]


class WorkingCopy:
    """The model at any mask. Units that cannot be cut are gated, which gives the same outputs.

    Masks that remove more and more cost one cut each; a mask that keeps a unit again starts from a new copy,
    and so does a model that was trained meanwhile. The copy shares all weights that no cut touched.
    """

    def __init__(self, model: PreTrainedModel, sites: AnySites):
        self.whole = model
        self.sites = sites
        self.names, self.targets = {site.name for site in sites}, {site.target for site in sites}
        self.cuttable = not any(isinstance(s, WeightSite) or s.uncuttable for s in sites)
        if unwrapped(model) is not model:
            self.cuttable = False  # it has an adapter
        if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
            self.cuttable = False  # spread over devices, and too large for a second copy
        self._copy: PreTrainedModel | None = None
        self._copied: list[tuple[int, int]] = []  # the model's weights and their versions at that time
        self._kept = Mask.ones(sites)

    @contextmanager
    def at(self, mask: Mask) -> Iterator[tuple[PreTrainedModel, AnySites]]:
        """Give the model as the mask leaves it, and the sites of it that were asked for."""
        if not self.cuttable:
            with masked(self.sites, mask):
                yield self.whole, self.sites
            return
        model = self._follow(mask)
        yield model, [site for site in find_sites(model, *self.targets) if site.name in self.names]

    def _follow(self, mask: Mask) -> PreTrainedModel:
        restores = any((mask[name] & ~kept).any() for name, kept in self._kept.items())
        weights = list(self.whole.parameters())
        versions = [(id(p), p._version) for p in weights]
        if self._copy is None or restores or versions != self._copied:
            self._copy = None  # before the next one is made: two need not fit into memory
            # cutting makes new parameters and writes into none, so the old ones may be the model's own
            self._copy = deepcopy(self.whole, {id(p): p for p in weights})
            self._copied = versions
            self._kept = Mask.ones(self.sites)
        now = Mask({name: mask[name][kept] for name, kept in self._kept.items()})
        if not all(m.all() for m in now.values()):
            cut(self._copy, now, report=False)
        self._kept = Mask(mask)
        return self._copy


def prune_steps(
    model: PreTrainedModel,
    sites: AnySites,
    criterion: Callable[..., Scores],
    batches: Batches | None,
    schedule: Iterable[float],
    *,
    scope: str | None = None,
    choose: Choose | None = None,
    reverse: bool = False,
    rescore: bool = True,
    start: Mask | None = None,
    copy: WorkingCopy | None = None,
    **options: Any,
) -> Iterator[Mask]:
    """Score what is kept, remove the lowest, yield the mask; the caller measures, trains or stops.

    >>> for mask in prune_steps(model, heads, criteria.load("gnorm"), batches, greedy(remove=1, units=144)):
    ...     with masked(model, mask):
    ...         print(mask.kept, accuracy(model))

    `schedule` gives the fraction removed after each step. `scope` is the criterion's own unless given;
    `choose(scores, remove, mask)` replaces both. `reverse` removes the highest scores first. Without
    `rescore` the unpruned model is scored, once. `start` resumes from a mask, `copy` shares a working copy
    with the caller. `options` go to the criterion. The model itself is not changed.
    """
    mask = Mask.ones(sites) if start is None else Mask(start)
    copy = copy or WorkingCopy(model, sites)
    scope = scope or str(getattr(criterion, "scope", GLOBAL))
    scores: Scores | None = None
    for remove in schedule:
        if scores is None or rescore:
            scores = scores_at(copy, mask if rescore else Mask.ones(sites), criterion, batches, **options)
            if reverse:
                scores = Scores({name: -value for name, value in scores.items()}, scores.axes)
        mask = (
            choose(scores, remove, mask) if choose else remove_lowest(scores, remove, scope=scope, mask=mask)
        )
        yield mask


def scores_at(
    copy: WorkingCopy, mask: Mask, criterion: Callable[..., Scores], batches: Batches | None, **options: Any
) -> Scores:
    """Score the units that `mask` keeps, in the numbering of the whole model; removed units get −inf."""
    with copy.at(mask) as (model, kept):
        found = criterion(model, kept, batches, **options)
    if not copy.cuttable:
        return found
    out = Scores()
    for site in copy.sites:
        full = torch.full(site.shape, -torch.inf, dtype=torch.float64)
        full[mask[site.name]] = found[site.name]
        out[site.name] = full
    return out
