"""Training under a mask: pruned weights are exactly zero in every forward pass, whatever the optimizer does.

Between two steps the parameter itself holds the masked weights; only inside `optimizer.step()` it may hold
others. So nothing has to be wrapped: evaluation, criteria, `state_dict`, saving and accelerate see an
ordinary model with zeros in it. torch.nn.utils.parametrize would rename every weight in the state dict and
hide the parameter from the optimizer it was given to; multiplying in a forward hook would leave the file full
of weights that are not used.

ste=False   a pruned weight gets no gradient and no moments
ste=True    straight-through estimator: W is used as M⊙W, the gradient of the product is given to W whole, and
            W (the latent weights) keeps learning behind the mask, so a pruned weight can come back
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..architectures.site import WeightSite
from ..core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from ..core.mask import Mask


class HeldMask:
    """A mask on weight sites that no optimizer step undoes. `change` it at any time between two steps."""

    def __init__(self, sites: Sequence[WeightSite], mask: Mask, *, ste: bool = False):
        self.weights: dict[str, Tensor] = {site.name: site.linear.weight for site in sites}
        if len({id(w) for w in self.weights.values()}) < len(self.weights):
            raise UnsupportedError("two of the sites share one weight, so a mask of each cannot be held")
        self.mask, self.ste = Mask(), ste
        self.latent = {name: w.detach().clone() for name, w in self.weights.items()} if ste else {}
        self._removed: dict[str, Tensor] = {}
        self._optimizer: Any = None
        self._handles: list[Any] = []
        self.change(mask)

    def change(self, mask: Mask) -> None:
        """Hold another mask from now on. A weight kept again is zero, or with `ste` what it has learned."""
        for name in mask.keys() - self.weights.keys():
            raise UnknownNameError("site", name, self.weights, "mask")
        for name, w in self.weights.items():
            if name not in mask or mask[name].shape != w.shape:
                seen = tuple(mask[name].shape) if name in mask else "none"
                raise InvalidValueError(f"{name} has shape {tuple(w.shape)}, its mask {seen}", "mask")
        self.mask = Mask({name: mask[name].cpu() for name in self.weights})
        self._removed = {name: ~self.mask[name].to(w.device) for name, w in self.weights.items()}
        self._apply()
        self._clear_moments()

    def attach(self, optimizer: Any) -> HeldMask:
        """Hook into the steps of a torch optimizer, before or after accelerate prepared it; return self."""
        self._optimizer = getattr(optimizer, "optimizer", optimizer)
        self._handles += [
            self._optimizer.register_step_pre_hook(lambda *_: self._before_step()),
            self._optimizer.register_step_post_hook(lambda *_: self._after_step()),
        ]
        for name, w in self.weights.items():
            if w.requires_grad and not self.ste:  # the norm for clipping must not count pruned weights
                clear = w.register_hook(lambda g, name=name: g.masked_fill(self._removed[name], 0))
                self._handles.append(clear)
        self._clear_moments()
        return self

    @torch.no_grad()
    def shrink(self, amount: float) -> None:
        """Do a proximal step of L1: move every weight towards zero by `amount`, and none beyond it.

        After a step of descent, `amount` is learning rate × strength of the penalty.
        """
        for w in (self.latent if self.ste else self.weights).values():
            w.copy_(torch.nn.functional.softshrink(w, amount))
        self._apply()

    def release(self) -> None:
        """Remove all hooks. The model keeps its zeros."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._optimizer = [], None

    def state(self) -> dict[str, Tensor]:
        """Return what is needed to resume: zeros among the weights do not say which ones are pruned."""
        masks = {f"mask/{name}": m.to(torch.uint8) for name, m in self.mask.items()}
        return masks | {f"latent/{name}": w for name, w in self.latent.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, w in self.latent.items():
            w.copy_(tensors[f"latent/{name}"])
        self.change(Mask({name: tensors[f"mask/{name}"] for name in self.weights}))

    @torch.no_grad()
    def _apply(self) -> None:
        for name, w in self.weights.items():
            if self.ste:
                w.copy_(self.latent[name])
            w.masked_fill_(self._removed[name], 0)  # not a product: that keeps inf, nan and −0

    @torch.no_grad()
    def _clear_moments(self) -> None:
        """Clear what would move a pruned weight once it is kept again: moments and unused gradients."""
        if self.ste or self._optimizer is None:
            return
        for name, w in self.weights.items():
            if w.grad is not None:  # of some of several batches that make one step
                w.grad.masked_fill_(self._removed[name], 0)
            for value in self._optimizer.state.get(w, {}).values():
                if isinstance(value, Tensor) and value.shape == w.shape:
                    value.masked_fill_(self._removed[name], 0)

    @torch.no_grad()
    def _before_step(self) -> None:
        for name, w in self.latent.items():
            self.weights[name].copy_(w)

    @torch.no_grad()
    def _after_step(self) -> None:
        for name, w in self.latent.items():
            w.copy_(self.weights[name])
        for name, w in self.weights.items():
            w.masked_fill_(self._removed[name], 0)


@contextmanager
def held(sites: Sequence[WeightSite], mask: Mask, optimizer: Any, *, ste: bool = False) -> Iterator[HeldMask]:
    """Hold a mask inside the block; afterwards the model is an ordinary one with zeros in it.

    >>> with held(sites(model, "weights"), mask, optimizer):
    ...     model(**batch).loss.backward()
    ...     optimizer.step()
    """
    hold = HeldMask(sites, mask, ste=ste)
    try:
        yield hold.attach(optimizer)
    finally:
        hold.release()


def mask_of_zeros(sites: Sequence[WeightSite]) -> Mask:
    """Return the mask that a sparse model shows: every weight that is exactly zero counts as removed."""
    return Mask({site.name: (site.linear.weight.detach() != 0).cpu() for site in sites})
