"""A stack: the blocks of a model in their order, whose units are whole blocks or whole sublayers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from .site import Saliency, Site, saliency_of

SUBLAYERS = {"heads": "attention", "cross_heads": "cross_attention", "neurons": "ffn"}  # of a spec's name


@dataclass(frozen=True)
class Part:
    """One unit of a stack: a block, or one sublayer of it, and the number of its block when unpruned."""

    number: int
    block: nn.Module
    sublayer: Site | None = None
    private: tuple[str, ...] = ()  # modules of the block that go with the sublayer
    exit: str = ""  # the last of them, if it follows the sublayer

    @property
    def writer(self) -> nn.Module:
        """What gives its output: the block, the norm after a sublayer, or the matrix that writes it back."""
        if self.sublayer is None or self.exit:
            return self.block.get_submodule(self.exit)
        return cast(nn.Module, self.sublayer.module("write"))

    @property
    def modules(self) -> list[nn.Module]:
        """What holds its parameters."""
        if self.sublayer is None:
            return [self.block]
        own = [self.sublayer.module(role) for role in self.sublayer.places]
        return [*own, *(self.block.get_submodule(path) for path in self.private)]

    @property
    def parameters(self) -> list[Tensor]:
        """Its parameters, each once."""
        return list({id(p): p for module in self.modules for p in module.parameters()}.values())


class StackSite:
    """The blocks of a stack that are left, or one kind of sublayer of each; a unit is the whole of one.

    A block without its unit passes on what it read; a sublayer without it adds nothing, not even its bias.
    `uncuttable` says why the units can be gated but not removed.
    """

    def __init__(
        self, path: str, name: str, target: str, parts: Sequence[Part], *, uses: int = 1, uncuttable: str = ""
    ):
        self.path, self.target, self.parts, self.uses, self.uncuttable = path, target, parts, uses, uncuttable
        self.name = f"{path}/{name}"

    def __repr__(self) -> str:
        return f"StackSite({self.name!r}, units={self.units})"

    @property
    def units(self) -> int:
        return len(self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.units,)

    @property
    def matrices(self) -> list[Tensor]:
        """Every weight that belongs to a unit."""
        return [p for part in self.parts for p in part.parameters if p.dim() > 1]

    def fold(self, saliency: Saliency) -> Tensor:
        """Return an element-wise saliency(weight, grad) summed over all weights of each unit, [units]."""
        total = torch.zeros(self.units, dtype=torch.float64)
        for unit, part in enumerate(self.parts):
            for p in part.parameters:
                total[unit] += float(saliency_of(p, saliency).sum(dtype=torch.float64)) if p.dim() > 1 else 0
        return total


def stack_sites(
    path: str,
    blocks: Sequence[tuple[int, nn.Module]],
    members: Sequence[Site],
    kept: Mapping[str, Sequence[int]],
    config: Any,
    *,
    fixed: str,
) -> list[StackSite]:
    """Return the sites of a stack: its blocks, then each kind of sublayer that they have.

    `kept` lists the numbers of the sublayers that earlier cuts left, by the name of their site.
    """
    uses = max((site.uses for site in members), default=1)
    own = [Part(number, block) for number, block in blocks]
    found = [StackSite(path, "layers", "layers", own, uses=uses, uncuttable=fixed)]
    for spec_name, name in SUBLAYERS.items():
        left = kept.get(f"{path}/{name}")
        inside = {id(block) for _, block in blocks}
        by_block = {id(s.block): s for s in members if s.spec.name == spec_name and id(s.block) in inside}
        parts = [
            Part(number, block, site, *_private(site, config))
            for number, block in blocks
            if (site := by_block.get(id(block))) is not None and (left is None or number in left)
        ]
        if by_block or left is not None:
            target = "attention" if name.endswith("attention") else name
            found.append(StackSite(path, name, target, parts, uses=uses))
    return found


def _private(site: Site, config: Any) -> tuple[tuple[str, ...], str]:
    """Return the private modules of a sublayer that its block has, and the one that follows it."""
    names, found, follows = dict(site.block.named_modules()), [], ""
    for text in site.spec.private:
        path, _, condition = text.removeprefix("+").partition(" if ")
        if path in names and (not condition or holds(condition, config)):
            found.append(path)
            follows = path if text.startswith("+") else follows
    return tuple(found), follows


def holds(condition: str, config: Any) -> bool:
    """Return whether a config is of a model type or has an entry that is true; `not` turns it round."""
    name = condition.removeprefix("not ")
    return (name == config.model_type or bool(getattr(config, name, False))) == (name == condition)
