"""Skipping heads: each example attends only with those that it is predicted to need.

What predicts them is described in predictor.py: how much every head will write, by the mean of the tokens in
front of the attention (in the first layer the first token is the same in every text). Queries, keys, values
and their products are computed of the chosen heads alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..architectures.sites import sites, unwrapped
from ..architectures.table import architecture_of, formula
from ..core.batches import Batches
from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel
from ..engine.passes import other_forward
from ..engine.token_places import dropper_of
from .predictor import Choice, Predictors, check, fit, kept, mean_token
from .rows import ROWS

ROLES = {"q", "k", "v", "write"}


def fit_head_predictors(model: PreTrainedModel, batches: Batches, *, damping: float = 0.1) -> Predictors:
    """Return what predicts, from the mean of the tokens, the mean length of what each head writes.

    Least squares with `damping` relative to the mean square of the inputs; padding is left out.
    """

    def written(site: Site, x: Tensor) -> Tensor:
        by_head = x[..., site.index("write").to(x.device)]  # [batch, tokens, heads, size]
        weight = site.weight("write").to(x)  # [heads, size, width]
        squares = weight @ weight.transpose(1, 2)
        lengths = torch.einsum("btud,ude,btue->btu", by_head, squares, by_head)
        return lengths.clamp(min=0).sqrt()

    return fit(model, batches, _sites(model), "q", mean_token, written, damping)


@contextmanager
def skipping_heads(model: PreTrainedModel, predictors: Mapping[str, Tensor], remove: float) -> Iterator[None]:
    """Attend only with the heads that each example is predicted to need; `remove` is the fraction skipped.

    Every example of a layer keeps as many heads, at least one, each its own.

    >>> with skipping_heads(model, fit_head_predictors(model, batches), remove=0.5):
    ...     logits = model(**batch).logits
    """
    found = _sites(model)
    check(found, predictors, remove)
    base = unwrapped(model).base_model
    padding = _Padding(base)
    with ExitStack() as undo:
        undo.enter_context(base.register_forward_pre_hook(padding.see, with_kwargs=True))
        for site in found:
            keep = kept(site, remove)
            attention = _Attention(site, Choice(predictors[site.name], keep), padding)
            for role in site.places:
                forward = attention.write if role == "write" else partial(attention.read, role)
                module = site.module(role)
                undo.enter_context(other_forward(module, forward))
            for name, text in site.spec.sync.items():  # how many heads the module believes to have
                undo.callback(setattr, site.attention, name, getattr(site.attention, name))
                setattr(site.attention, name, formula(text, {"u": keep, **site.sizes}))
        yield


class _Padding:
    """The mask of the tokens that the model reads now."""

    def __init__(self, base: nn.Module) -> None:
        self.base = base
        self.whole: Tensor | None = None

    def see(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        found = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
        self.whole = found if isinstance(found, Tensor) else None

    @property
    def mask(self) -> Tensor | None:
        """The mask of the examples that have not left early."""
        rows = ROWS.get(self.base)
        if self.whole is None or rows is None:
            return self.whole
        return self.whole[rows.to(self.whole.device)]


class _Attention:
    """The four layers of an attention, each example with its own heads."""

    def __init__(self, site: Site, choice: Choice, padding: _Padding):
        self.choice, self.layers = choice, {role: site.module(role) for role in site.places}
        self.padding = padding
        device = self.layers["q"].weight.device
        self.index = {role: site.index(role).to(device) for role in site.places}
        self.by_channel = self.layers["write"].weight.detach().T.contiguous()
        self.seen: Tensor | None = None

    def read(self, role: str, x: Tensor) -> Tensor:
        if self.seen is not x:  # queries, keys and values read the same; the first of them chooses
            self.choice.choose(mean_token(x, self.padding.mask))
            self.seen = x
        layer = self.layers[role]
        return self.choice.apply(x, layer.weight, layer.bias, self.index[role])

    def write(self, x: Tensor) -> Tensor:
        self.seen = None
        return self.choice.add_up(x, self.by_channel, self.layers["write"].bias, self.index["write"])


def _sites(model: PreTrainedModel) -> list[Site]:
    kind = model.config.model_type
    if dropper_of(model) is not None:
        raise UnsupportedError("the model drops tokens, whose scores need every head: remove its schedule")
    found = [site for site in sites(model, "heads") if site.units]
    for site in found:
        layers = [site.module(role) for role in site.places]
        if set(site.places) != ROLES or not all(isinstance(one, nn.Linear) for one in layers):
            raise UnsupportedError(
                f"{site.name} of {kind}: heads are skipped between separate linear layers for queries, keys, "
                "values and the output, and here they are fused, transposed or more"
            )
        if site.spec.name != "heads" or site.group > 1 or site.spec.follow or site.spec.uncuttable:
            raise UnsupportedError(
                f"{site.name} of {kind}: heads are skipped where each has its own keys and no positions of "
                "its own, and the attention is to the same tokens"
            )
        tower = getattr(getattr(site.attention, "config", None), "model_type", kind)
        if getattr(site.attention, "is_causal", False) or tower in architecture_of(unwrapped(model)).causal:
            raise UnsupportedError(
                f"{site.name} of {kind} is causal: its heads cannot be chosen by tokens that are yet to "
                "come. Give an encoder, or the tower of the model that is one, as model.vision_model"
            )
    return found
