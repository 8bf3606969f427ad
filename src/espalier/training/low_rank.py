"""LoRA: only a low-rank addition to every matrix of the blocks learns, and is merged into it in the end.

W + (α / r) · B·A, with A of r rows and B of r columns, B zero at the start (Hu et al., arXiv 2106.09685).
Moments are kept for the additions alone, so a training takes the memory of the model and little more. The
heads of the model, outside its blocks, learn as usual.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..architectures.sites import sites
from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel
from ..io.plugin import import_optional
from .callbacks import Callback
from .held_mask import mask_of_zeros

if TYPE_CHECKING:
    from .run import Run

ALPHA = 2  # times the rank
FEW = 5e-5  # of the weights: those that are zero because 16 bits rounded them


@dataclass(eq=False)
class LowRank(Callback):
    """Train low-rank additions through peft; afterwards the model is a plain one again."""

    rank: int
    seed: int = 0
    _learns: dict[str, bool] = field(default_factory=dict, init=False, repr=False)

    def settings(self) -> dict[str, Any]:
        return {"callback": "lowrank", "rank": self.rank}

    def wrap(self, model: PreTrainedModel) -> None:
        peft: Any = import_optional("peft", "train", "LoRA")
        places = sites(model, "weights")
        if mask_of_zeros(places).kept < 1 - FEW:
            raise UnsupportedError(
                "weights of the model are zero, and a sum would fill them: leave `lora` out"
            )
        inside = {id(site.linear) for site in places}
        names = [name for name, module in model.named_modules() if id(module) in inside]
        self._learns = {name: p.requires_grad for name, p in model.named_parameters()}
        config = peft.LoraConfig(r=self.rank, lora_alpha=ALPHA * self.rank, target_modules=names)
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            peft.inject_adapter_in_model(config, model)
        body = f"{model.base_model_prefix}."
        for name, p in model.named_parameters():
            if not name.startswith(body):
                p.requires_grad_(self._learns.get(name, True))

    def after_training(self, run: Run) -> None:
        self._unwrap(run.model, merge=True)

    def summary(self) -> dict[str, Any]:
        return {"lora": {"rank": self.rank}}

    def unwrap(self, model: PreTrainedModel) -> None:
        self._unwrap(model, merge=False)

    def _unwrap(self, model: nn.Module, *, merge: bool) -> None:
        """Put the plain layers back, with or without what was learned."""
        for name, module in list(model.named_modules()):
            if hasattr(module, "base_layer"):
                if merge:
                    module.merge()
                parent, _, last = name.rpartition(".")
                setattr(model.get_submodule(parent), last, module.base_layer)
        model.__dict__.pop("peft_config", None)
        for name, p in model.named_parameters():
            p.requires_grad_(self._learns.get(name, True))
