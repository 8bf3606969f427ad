"""Callbacks: what a training does besides gradient descent, called at fixed points of the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..architectures.site import WeightSite
from ..architectures.sites import ALSO, sites
from ..core.mask import Mask
from ..core.types import PreTrainedModel
from .held_mask import HeldMask, mask_of_zeros

if TYPE_CHECKING:
    from .run import Run


class Callback:
    """A callback that does nothing. Subclasses override the methods they need."""

    def settings(self) -> dict[str, Any]:
        """Return the settings that distinguish this training from another one, as plain JSON."""
        return {}

    def on_start(self, run: Run) -> None:
        """Run before the first step, and before a state is loaded."""

    def after_backward(self, run: Run) -> None:
        """Run when the gradients of a batch are computed, before they are clipped."""

    def after_step(self, run: Run) -> None:
        """Run when `run.step` steps are done."""

    def after_epoch(self, run: Run) -> None:
        """Run when the last row of `run.epochs` is measured."""

    def after_training(self, run: Run) -> None:
        """Run when all steps are done, before the model is saved; it may be cut here."""

    def state(self) -> dict[str, Tensor]:
        """Return what a state must hold to resume, besides weights and moments."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned; the weights are restored already."""

    def summary(self) -> dict[str, Any]:
        """Return facts about the result as plain JSON; they are saved with the model."""
        return {}

    def scalars(self) -> dict[str, float]:
        """Return numbers that are worth a curve, as they are now."""
        return {}

    def on_end(self) -> None:
        """Remove all hooks. Called after errors too, and also if `on_start` failed."""


class Callbacks(Callback):
    """Several callbacks as one, called in their order."""

    def __init__(self, *callbacks: Callback):
        self.callbacks = callbacks

    def settings(self) -> dict[str, Any]:
        return self._merged("settings")

    def on_start(self, run: Run) -> None:
        for one in self.callbacks:
            one.on_start(run)

    def after_backward(self, run: Run) -> None:
        for one in self.callbacks:
            one.after_backward(run)

    def after_step(self, run: Run) -> None:
        for one in self.callbacks:
            one.after_step(run)

    def after_epoch(self, run: Run) -> None:
        for one in self.callbacks:
            one.after_epoch(run)

    def after_training(self, run: Run) -> None:
        for one in self.callbacks:
            one.after_training(run)

    def state(self) -> dict[str, Tensor]:
        return self._merged("state")

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        for one in self.callbacks:
            one.load_state(tensors)

    def summary(self) -> dict[str, Any]:
        return self._merged("summary")

    def scalars(self) -> dict[str, float]:
        return self._merged("scalars")

    def on_end(self) -> None:
        for one in self.callbacks:
            one.on_end()

    def _merged(self, name: str) -> dict[str, Any]:
        return {key: value for one in self.callbacks for key, value in getattr(one, name)().items()}


@dataclass(eq=False)
class Hold(Callback):
    """Keep every pruned weight of a sparse model at zero; outside the blocks, what `pruned_outside` finds."""

    # of embeddings, head and norms: what is pruned here like the blocks, and what was pruned before
    also: tuple[str, ...] = field(default=(), kw_only=True)
    before: tuple[str, ...] = field(default=(), kw_only=True)
    _held: tuple[HeldMask, ...] = field(default=(), init=False, repr=False)

    def on_start(self, run: Run) -> None:
        self.hold(run)

    def hold(self, run: Run, *, ste: bool = False) -> None:
        """Find the sites and the weights that are zero already, and hold those at zero."""
        self.sites: list[WeightSite] = sites(run.model, "weights", also=self.also)
        self.start = mask_of_zeros(self.sites)  # what it removes never comes back
        outside = [s for s in pruned_outside(run.model, self.before) if s.name not in self.start]
        self.held = HeldMask(self.sites, self.start, ste=ste)
        self._held = (self.held, HeldMask(outside, mask_of_zeros(outside)))
        for one in self._held:
            one.attach(run.optimizer)

    def settings(self) -> dict[str, Any]:
        also = {"also": list(self.also)} if self.also else {}
        return {"callback": type(self).__name__.lower(), **also}

    def state(self) -> dict[str, Tensor]:
        out = {name: t for one in self._held for name, t in one.state().items()}
        if self.held.ste:  # without it, the mask is enough
            out |= {f"start/{name}": m.to(torch.uint8) for name, m in self.start.items()}
        return out

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        for one in self._held:
            one.load_state(tensors)
        # a model that was stopped half-way has more zeros than at its start
        self.start = Mask({n: tensors.get(f"start/{n}", m).bool() for n, m in self.start.items()})

    def summary(self) -> dict[str, Any]:
        return {"sparsity": count_zeros(self.sites)}

    def on_end(self) -> None:
        for one in self._held:
            one.release()


def pruned_outside(model: PreTrainedModel, known: Sequence[str] = ()) -> list[WeightSite]:
    """Return the trainable sites outside the blocks that are pruned: the `known` ones, and by their zeros.

    In the blocks every zero counts as pruned. Outside there are other zeros: rows of padding and of new
    tokens, whole heads and norms that start at zero. All of these are rows of nothing but zeros. So a matrix
    counts as pruned if a row of it is partly zero, and then all its zeros do; a norm is one row.
    """

    def partly_zero(site: WeightSite) -> bool:
        zero = site.linear.weight.detach() == 0
        return bool((zero.any(site.input_axis) & ~zero.all(site.input_axis)).any())

    blocks = {site.name for site in sites(model, "weights")}
    sure = {site.name for site in sites(model, "weights", also=known)}
    outside = [site for site in sites(model, "weights", also=ALSO) if site.name not in blocks]
    trainable = [site for site in outside if site.linear.weight.requires_grad]
    return [site for site in trainable if site.name in sure or partly_zero(site)]


def count_zeros(sites: Sequence[WeightSite]) -> dict[str, Any]:
    """Return how many weights the sites have and which fraction is zero, in total and by site."""
    mask = mask_of_zeros(sites)
    each = {name: round(1 - m.float().mean().item(), 4) for name, m in mask.items() if m.numel()}
    return {"weights": sum(m.numel() for m in mask.values()), "zero": 1 - mask.kept, "sites": each}
