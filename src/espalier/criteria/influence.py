"""Influence: how far a block turns what it reads (ShortGPT, Men et al. 2024, https://arxiv.org/abs/2403.03853).

One minus the cosine between what goes into a block and what comes out, averaged over all real tokens. No
labels and no gradients are needed. It is scored once; `influence:greedy` scores again after every block.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import WeightSite
from ..architectures.sites import sites as find_sites
from ..architectures.stack import StackSite
from ..core.batches import Batch, model_inputs
from ..engine.activations import real_tokens
from . import Batches, Scores, criterion


@criterion("layers", needs_data=True, idle="any", unit="one minus cosine")
def influence(model: nn.Module, sites: Sequence[StackSite], batches: Batches) -> Scores:
    total = {site.name: torch.zeros(site.units, dtype=torch.float64) for site in sites}
    tokens = {site.name: torch.zeros(site.units, dtype=torch.float64) for site in sites}
    matrices = find_sites(model, "weights")
    # the first matrix of a stack reads the tokens that its blocks do
    readers = {site.name: next(m for m in matrices if m.name.startswith(f"{site.path}.")) for site in sites}
    labels = bool(getattr(model.config, "is_encoder_decoder", False))

    def watch(
        _: nn.Module, args: Any, kwargs: Any, out: Any, name: str, unit: int, reader: WeightSite, batch: Batch
    ) -> None:
        before = args[0] if args else kwargs["hidden_states"]
        after: Tensor = out[0] if isinstance(out, tuple) else out
        x, y = (real_tokens(model, reader, batch, t.detach()).double() for t in (before, after))
        total[name][unit] += (1 - torch.nn.functional.cosine_similarity(x, y)).sum().cpu()
        tokens[name][unit] += len(x)

    for batch in batches:
        with torch.no_grad(), ExitStack() as hooks:
            for site in sites:
                for unit, part in enumerate(site.parts):
                    see: Any = partial(
                        watch, name=site.name, unit=unit, reader=readers[site.name], batch=batch
                    )
                    hooks.enter_context(part.block.register_forward_hook(see, with_kwargs=True))
            model(**model_inputs(batch, labels=labels))
    return Scores({name: value / tokens[name].clamp(min=1) for name, value in total.items()})
