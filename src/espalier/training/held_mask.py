"""Training under a mask: pruned weights are exactly zero in every forward pass, whatever the optimiser does.

Between two steps the parameter itself holds the masked weights; only inside `optimiser.step()` it may hold
others. So nothing has to be wrapped: evaluation, criteria, `state_dict`, saving and accelerate meet an
ordinary model with zeros in it. torch.nn.utils.parametrize would rename every weight in the state dict and
hide the parameter from the optimiser it was given to; multiplying in a forward hook would leave the file full
of weights that are not used.

masked     a pruned weight gets no gradient and no moments: it is gone
straight   W is used as M⊙W, the gradient of the product is given to W whole (straight-through), and W goes on
           learning behind the mask, so that a weight can come back with a value of its own
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..core.errors import EspalierError, suggest
from ..core.mask import Mask


class Held:
    """A mask on weight sites that no optimiser step undoes. `change` it at any time between two steps."""

    def __init__(self, sites: Sequence[Any], mask: Mask, *, straight: bool = False):
        self.weights: dict[str, Tensor] = {site.name: site.linear.weight for site in sites}
        if len({id(w) for w in self.weights.values()}) < len(self.weights):
            raise EspalierError("two of the sites share one weight, so a mask of each cannot be held")
        self.mask, self.straight = Mask(), straight
        self.behind: dict[str, Tensor] = {}  # straight: the weights as they would be without the mask
        if straight:
            self.behind = {name: w.detach().clone() for name, w in self.weights.items()}
        self._gone: dict[str, Tensor] = {}
        self._optimiser: Any = None
        self._handles: list[Any] = []
        self.change(mask)

    def change(self, mask: Mask) -> None:
        """Hold another mask from now on. What opens again is zero, or in `straight` what it has learned."""
        for name in mask:
            if name not in self.weights:
                raise EspalierError(f"no weights {name!r}{suggest(name, self.weights)}")
        for name, w in self.weights.items():
            if name not in mask or mask[name].shape != w.shape:
                seen = tuple(mask[name].shape) if name in mask else "none"
                raise EspalierError(f"{name} has shape {tuple(w.shape)}, its mask {seen}")
        self.mask = Mask({name: mask[name].cpu() for name in self.weights})
        self._gone = {name: ~self.mask[name].to(w.device) for name, w in self.weights.items()}
        self._show()
        self._forget()

    def attach(self, optimiser: Any) -> Held:
        """Watch over this optimiser's steps: any of torch, before or after accelerate prepared it."""
        self._optimiser = getattr(optimiser, "optimizer", optimiser)
        before, after = self._before_step, self._after_step
        self._handles += [
            self._optimiser.register_step_pre_hook(lambda *_: before()),
            self._optimiser.register_step_post_hook(lambda *_: after()),
        ]
        if not self.straight:
            for name, w in self.weights.items():
                if w.requires_grad:  # the norm that is clipped by must not count what is gone
                    self._handles.append(
                        w.register_hook(lambda g, name=name: g.masked_fill(self._gone[name], 0))
                    )
        self._forget()
        return self

    @torch.no_grad()
    def shrink(self, by: float) -> None:
        """A proximal step of L1: every weight nearer to zero by so much, and none beyond it.

        After a step of descent at some rate, `by` is rate × strength of the penalty.
        """
        for w in (self.behind if self.straight else self.weights).values():
            w.copy_(torch.nn.functional.softshrink(w, by))
        self._show()

    def release(self) -> None:
        """Hold no longer. The model keeps its zeros."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._optimiser = [], None

    def tensors(self) -> dict[str, Tensor]:
        """What must be remembered to go on: zeros among the weights do not tell which ones are pruned."""
        kept = {f"mask/{name}": m.to(torch.uint8) for name, m in self.mask.items()}
        return kept | {f"behind/{name}": w for name, w in self.behind.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        for name, w in self.behind.items():
            w.copy_(tensors[f"behind/{name}"])
        self.change(Mask({name: tensors[f"mask/{name}"] for name in self.weights}))

    @torch.no_grad()
    def _show(self) -> None:
        for name, w in self.weights.items():
            if self.straight:
                w.copy_(self.behind[name])
            w.masked_fill_(self._gone[name], 0)  # not a product: that keeps inf, nan and −0

    @torch.no_grad()
    def _forget(self) -> None:
        """Momentum of what is gone, or a gradient not used yet, would move it once it opens again."""
        if self.straight or self._optimiser is None:
            return
        for name, w in self.weights.items():
            if w.grad is not None:  # some of several batches that make one step
                w.grad.masked_fill_(self._gone[name], 0)
            for value in self._optimiser.state.get(w, {}).values():
                if isinstance(value, Tensor) and value.shape == w.shape:
                    value.masked_fill_(self._gone[name], 0)

    @torch.no_grad()
    def _before_step(self) -> None:
        for name, w in self.behind.items():
            self.weights[name].copy_(w)

    @torch.no_grad()
    def _after_step(self) -> None:
        for name, w in self.behind.items():
            w.copy_(self.weights[name])
        for name, w in self.weights.items():
            w.masked_fill_(self._gone[name], 0)


@contextmanager
def held(sites: Sequence[Any], mask: Mask, optimiser: Any, *, straight: bool = False) -> Iterator[Held]:
    """Inside, the optimiser cannot undo the mask; afterwards the model is an ordinary one with zeros in it.

    >>> with held(sites(model, "weights"), mask, optimiser):
    ...     model(**batch).loss.backward()
    ...     optimiser.step()
    """
    hold = Held(sites, mask, straight=straight)
    try:
        yield hold.attach(optimiser)
    finally:
        hold.release()


def zeros_of(sites: Sequence[Any]) -> Mask:
    """The mask that a sparse model shows: every weight that is exactly zero counts as pruned."""
    return Mask({site.name: (site.linear.weight.detach() != 0).cpu() for site in sites})
