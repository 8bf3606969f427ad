"""Gradual pruning: a training on the way of which more and more weights are zero, and stay it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..architectures.table import sites as find_sites
from ..core.batches import Batches
from ..core.errors import EspalierError
from ..core.mask import Mask, Scores
from ..selection.schedules import Ramp
from ..selection.scopes import lowest
from .held_mask import Held, zeros_of
from .regime import Regime

STAIRS = 50  # masks on the way, if nobody says how many steps lie between two


def pruned_outside(model: Any, known: tuple[str, ...] = ()) -> list[Any]:
    """Embeddings, norms and heads that somebody pruned, among those that learn: the `known` ones, and others.

    In the blocks every zero counts as pruned. Outside there are others: rows of padding and of new tokens,
    whole heads and norms that begin at zero. All of these are rows of nothing but zeros. So a matrix counts
    as pruned if a row of it is partly zero, and then all its zeros do; a norm is one row. Biases never do.
    """
    blocks = {site.name for site in find_sites(model, "weights")}
    sure = {site.name for site in find_sites(model, "weights", **dict.fromkeys(known, True))}
    found = find_sites(model, "weights", embeddings=True, head=True, norms=True)
    return [
        site
        for site in found
        if site.name not in blocks
        and site.linear.weight.requires_grad
        and (site.name in sure or _partly_zero(site))
    ]


def _partly_zero(site: Any) -> bool:
    zero = site.linear.weight.detach() == 0
    axis = site.input_axis
    return bool((zero.any(axis) & ~zero.all(axis)).any())


@dataclass(eq=False)
class Hold(Regime):
    """Keep every zero that a sparse model came with; `pruned_outside` says which, outside its blocks."""

    # Of embeddings, head and norms: what is pruned here as the blocks are, and what was before.
    also: tuple[str, ...] = field(default=(), kw_only=True)
    before: tuple[str, ...] = field(default=(), kw_only=True)

    def begin(self, run: Any) -> None:
        self.find(run)
        self.held = Held(self.sites, self.start).attach(run.optimiser)

    def find(self, run: Any) -> None:
        """What is pruned already, and must not come back: in the blocks, and in the rest of the model."""
        self.sites = find_sites(run.model, "weights", **dict.fromkeys(self.also, True))
        self.start = zeros_of(self.sites)
        outside = pruned_outside(run.model, self.before)
        outside = [site for site in outside if site.name not in self.start]
        self.rest = Held(outside, zeros_of(outside)).attach(run.optimiser)

    def settings(self) -> dict[str, Any]:
        return {"regime": "hold", **self.told_also()}

    def told_also(self) -> dict[str, Any]:
        return {"also": list(self.also)} if self.also else {}

    def tensors(self) -> dict[str, Tensor]:
        told = self.held.tensors() | self.rest.tensors()
        if self.held.straight:  # else the mask tells as much
            told |= {f"start/{name}": m.to(torch.uint8) for name, m in self.start.items()}
        return told

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.held.restore(tensors)
        self.rest.restore(tensors)
        # A model that was stopped in this program shows more zeros than it came with.
        self.start = Mask({n: tensors.get(f"start/{n}", m).bool() for n, m in self.start.items()})

    def outcome(self, run: Any) -> dict[str, Any]:
        return {"sparsity": sparsity(self.sites)}

    def end(self) -> None:
        for each in ("held", "rest"):
            if hasattr(self, each):
                getattr(self, each).release()


@dataclass(eq=False)
class Gradual(Hold):
    """From `initial` to `keep` of the weights, over the first `until` of the training; the rest recovers.

    At every stair the criterion scores the model as it is and `choose` closes the lowest of the living, so
    what is pruned stays pruned. With `straight` the weights go on learning behind the mask, are scored by
    what they have learned, and may come back; but not those that the model came without.
    """

    criterion: Callable[..., Scores]
    keep: float
    schedule: str = "cubic"
    initial: float = 1.0
    until: float = 0.75
    every: int | None = None  # steps between two masks
    choose: Callable[..., Mask] = lowest
    batches: Batches | None = None
    straight: bool = False
    l1: float = 0.0  # strength of a penalty that pulls every weight to zero; with keep=1 it alone decides
    about: Mapping[str, Any] = field(default_factory=dict)  # names of the above, for the record

    def __post_init__(self) -> None:
        check_until(self.until)
        if self.l1 < 0:
            raise EspalierError(f"l1 is the strength of a penalty, 0 or more; got {self.l1}")
        self.ramp(1)  # better now than after the data is read

    def ramp(self, steps: int) -> Ramp:
        end = round(self.until * steps)
        every = self.every or max(1, end // STAIRS)
        return Ramp(self.keep, end, self.schedule, self.initial, every=every)

    def settings(self) -> dict[str, Any]:
        names = ("keep", "schedule", "initial", "until", "every", "straight", "l1")
        return {
            "regime": "gradual",
            **{n: getattr(self, n) for n in names},
            **self.told_also(),
            **self.about,
        }

    def begin(self, run: Any) -> None:
        self.find(run)
        self.held = Held(self.sites, self.start, straight=self.straight).attach(run.optimiser)
        self.stairs = self.ramp(run.total)
        for batch in self.batches or ():
            batch.update({name: t.to(run.accelerator.device) for name, t in batch.items()})
        self._prune(run)

    def after_step(self, run: Any) -> None:
        if self.l1:
            self.held.shrink(run.optimiser.param_groups[0]["lr"] * self.l1)
        self._prune(run)

    def _prune(self, run: Any) -> None:
        keep = self.stairs(run.step)
        if not self.stairs.due(run.step) or keep >= 1:
            return
        if self.straight:
            self.held.change(self.start)  # scored by all that they have learned
        if out_of_reach(self.choose, keep, self.held.mask):
            return
        scores = self.criterion(run.model, self.sites, self.batches)
        self.held.change(self.choose(scores, keep, mask=self.held.mask))


def out_of_reach(choose: Callable[..., Mask], keep: float, mask: Mask) -> bool:
    """Whether fewer live than shall: of the whole model. Every other scope keeps what lives in its parts."""
    return choose is lowest and keep > mask.kept


def check_until(until: float) -> None:
    if not 0 <= until <= 1:
        raise EspalierError(f"until is a fraction of the training, from 0 to 1; got {until}")


def sparsity(sites: list[Any]) -> dict[str, Any]:
    """How much of the prunable weights is zero, in all and site by site, for the record."""
    mask = zeros_of(sites)
    each = {name: round(1 - m.float().mean().item(), 4) for name, m in mask.items() if m.numel()}
    return {"weights": sum(m.numel() for m in mask.values()), "zero": 1 - mask.kept, "sites": each}
