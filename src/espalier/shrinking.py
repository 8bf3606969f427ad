"""A copy of a model that shrinks as a mask closes: the model a greedy loop runs is the smaller one."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from .anatomy import sites as find_sites
from .core import Mask
from .probe import masked
from .surgery import cut


class Shrinking:
    """The model at any mask. Gated ≡ cut makes it the same; what cannot be cut is gated.

    Masks that close one after the other cost one cut each; a mask that opens something starts over.
    """

    def __init__(self, model: nn.Module, sites: Sequence[Any]):
        self.whole = model
        self.sites = list(sites)
        self.names = {site.name for site in self.sites}
        self.cuttable = all(s.kind != "weights" and not s.part.uncuttable for s in self.sites)
        if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
            self.cuttable = False  # spread over devices, and too large for a second copy
        self._copy: nn.Module | None = None
        self._alive = Mask.ones(self.sites)

    @contextmanager
    def at(self, mask: Mask) -> Iterator[tuple[nn.Module, list[Any]]]:
        """The model as the mask leaves it, and the sites asked for as they are in it."""
        if not self.cuttable:
            with masked(self.sites, mask):
                yield self.whole, self.sites
            return
        model = self._follow(mask)
        yield model, [site for site in find_sites(model) if site.name in self.names]

    def _follow(self, mask: Mask) -> nn.Module:
        opens = any((mask[name] & ~alive).any() for name, alive in self._alive.items())
        if self._copy is None or opens:
            self._copy = copy.deepcopy(self.whole)
            self._alive = Mask.ones(self.sites)
        now = Mask({name: mask[name][alive] for name, alive in self._alive.items()})
        if not all(m.all() for m in now.values()):
            cut(self._copy, now, report=False)
        self._alive = Mask(mask)
        return self._copy
