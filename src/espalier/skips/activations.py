"""Activation pruning: small activations are set to zero; how many are, and what a threshold removes.

ReLU gives zeros by itself, about half of its outputs; GELU and SiLU give none, so a threshold must make them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..architectures.sites import sites
from ..core.batches import Batches, model_inputs, require_batches
from ..core.errors import InvalidValueError, UnknownNameError
from ..core.types import PreTrainedModel
from ..engine.passes import frozen_eval

SAMPLE = 200_000  # activations of a layer that a quantile is taken of


def activation_sparsity(model: PreTrainedModel, batches: Batches) -> dict[str, float]:
    """Return the fraction of the activations of neurons that is exactly zero, by site, padding left out."""
    counts: dict[str, list[int]] = {site.name: [0, 0] for site in sites(model, "neurons")}

    def see(site: Site, x: Tensor) -> None:
        counts[site.name][0] += int((x == 0).sum())
        counts[site.name][1] += x.numel()

    _read(model, batches, see)
    return {name: zeros / n if n else 0.0 for name, (zeros, n) in counts.items()}


def find_thresholds(model: PreTrainedModel, batches: Batches, remove: float) -> dict[str, float]:
    """Return for each site the size below which a fraction `remove` of its activations lies."""
    if not 0 <= remove < 1:
        raise InvalidValueError(f"`remove` is a fraction from 0 to below 1; got {remove}", "remove")
    seen: dict[str, list[Tensor]] = {}
    each = max(1, SAMPLE // max(1, len(batches)))

    def see(site: Site, x: Tensor) -> None:
        flat = x.abs().flatten().float()
        step = max(1, flat.numel() // each)
        seen.setdefault(site.name, []).append(flat[::step])

    _read(model, batches, see)
    return {name: float(torch.cat(parts).quantile(remove)) if parts else 0.0 for name, parts in seen.items()}


@contextmanager
def thresholded(model: PreTrainedModel, thresholds: float | Mapping[str, float]) -> Iterator[None]:
    """Set activations of neurons below a threshold to zero: one threshold, or one for each site.

    Gradients pass where activations do.
    """
    found = {site.name: site for site in sites(model, "neurons")}
    chosen = thresholds if isinstance(thresholds, Mapping) else dict.fromkeys(found, thresholds)
    for name, value in chosen.items():
        if name not in found:
            raise UnknownNameError("site of this model", name, found, "thresholds")
        if not 0 <= value < float("inf"):
            raise InvalidValueError(f"`thresholds` are numbers from 0; got {value} for {name}", "thresholds")

    def cut_off(_: nn.Module, args: Any, threshold: float) -> Any:
        return (keep_large(args[0], threshold), *args[1:])

    with ExitStack() as hooks:
        for name, value in chosen.items():
            writer = found[name].module("write")
            hooks.enter_context(writer.register_forward_pre_hook(partial(cut_off, threshold=value)))
        yield


def keep_large(x: Tensor, threshold: float) -> Tensor:
    """Return x with zeros where its size is below the threshold."""
    return x * (x.abs() >= threshold).to(x.dtype)


def _read(model: PreTrainedModel, batches: Batches, see: Any) -> None:
    require_batches(batches, "the sparsity of activations")
    for batch in batches:
        mask = batch.get("attention_mask")

        def watch(_: nn.Module, args: Any, site: Site, mask: Tensor | None = mask) -> None:
            x = args[0]
            real = mask is not None and mask.shape == x.shape[:-1]
            see(site, x[mask.bool()] if real and mask is not None else x)

        with torch.no_grad(), frozen_eval(model), ExitStack() as hooks:
            for site in sites(model, "neurons"):
                hooks.enter_context(site.module("write").register_forward_pre_hook(partial(watch, site=site)))
            model(**model_inputs(batch, labels=False))
