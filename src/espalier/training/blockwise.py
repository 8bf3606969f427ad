"""Blockwise distillation: each sublayer of a pruned model learns the output of the dense model's own.

loss = mean over sublayers of Σ ‖student − teacher‖² / Σ ‖teacher‖², sums over tokens that are not padding

Attention and feed-forward networks are sublayers of their own. The outputs are those of the layers that write
to the residual stream, before they are added to it, so all sublayers weigh the same. Labels are not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.sites import sites
from ..core.errors import InvalidValueError, UnsupportedError
from ..core.types import PreTrainedModel
from ..engine.token_places import dropper_of
from ..io.files import fingerprint_weights


@dataclass(eq=False)
class Blockwise:
    """A loss for `train` with a teacher, which does not change. `hidden_weight` and others do not apply."""

    teacher: PreTrainedModel
    kind: str = "classification"  # of every loss; labels are not read
    name: str = ""  # of the teacher, for the record
    _writers: dict[str, nn.Module] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.teacher.eval().requires_grad_(False)
        self._writers = writers_of(self.teacher)

    def settings(self) -> dict[str, Any]:
        """Return what distinguishes this loss from another one, as plain JSON."""
        return {
            "loss": "blockwise",
            "teacher": self.name,
            "teacher_fingerprint": fingerprint_weights(self.teacher),
        }

    def __call__(self, model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
        plain: Any = getattr(model, "module", model)  # several processes wrap it
        if dropper_of(plain) is not None:
            raise UnsupportedError(
                "the model drops tokens, and blockwise recovery compares all of them: take `way` distill"
            )
        mine = {name: writer for name, writer in writers_of(plain).items() if name in self._writers}
        if not mine:
            raise InvalidValueError("no sublayer of the model is one of the teacher", "teacher")
        decodes = getattr(plain.config, "is_encoder_decoder", False)  # a decoder may read the labels
        inputs = {name: value for name, value in batch.items() if decodes or name != "labels"}
        got = _outputs(model, mine, inputs)
        self.teacher.to(next(iter(got.values())).device)
        with torch.no_grad():
            wanted = _outputs(self.teacher, {name: self._writers[name] for name in mine}, inputs)
        mask = batch.get("attention_mask")
        return torch.stack([distance(got[name], wanted[name], mask) for name in got]).mean()


def writers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return {site: the layer that writes to the residual stream} of every sublayer that has units left."""
    return {site.name: site.module("write") for site in sites(model, "heads", "neurons") if site.units}


def distance(student: Tensor, teacher: Tensor, mask: Tensor | None) -> Tensor:
    """Return the squared distance as a share of the teacher's square; padding does not count."""
    student, teacher = student.float(), teacher.float()
    kept = torch.ones(student.shape[:-1], device=student.device)
    if mask is not None and mask.numel() == kept.numel():  # a decoder reads other tokens than its mask's
        kept = mask.reshape(kept.shape).float()
    off, size = ((x.square().mean(-1) * kept).sum() for x in (student - teacher, teacher))
    return off / size.clamp_min(1e-12)


def _outputs(model: Any, writers: Mapping[str, nn.Module], inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Run the model and return what each writer wrote; the last use, where layers share a writer."""
    found: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, args, out: found.update({name: out})

    with ExitStack() as hooks:
        for name, writer in writers.items():
            hooks.enter_context(writer.register_forward_hook(keep(name)))
        model(**inputs)
    return found
