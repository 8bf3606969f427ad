"""A copy of a model that shrinks as a mask closes: the model a greedy loop runs is the smaller one."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..architectures.table import sites as find_sites
from ..core.mask import Mask
from ..engine.gates import masked
from .cut import cut


class WorkingCopy:
    """The model at any mask. Gated ≡ cut makes it the same; what cannot be cut is gated.

    Masks that close one after the other cost one cut each; a mask that opens something starts over, and so
    does a model that was trained meanwhile. The copy shares with the model all weights that no cut touched.
    """

    def __init__(self, model: nn.Module, sites: Sequence[Any]):
        self.whole = model
        self.sites = list(sites)
        self.names = {site.name for site in self.sites}
        self.cuttable = all(s.target != "weights" and not s.part.uncuttable for s in self.sites)
        if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
            self.cuttable = False  # spread over devices, and too large for a second copy
        self._copy: nn.Module | None = None
        self._copied: list[tuple[int, int]] = []  # the model's weights and versions, when it was
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
        weights = list(self.whole.parameters())
        versions = [(id(p), p._version) for p in weights]
        if self._copy is None or opens or versions != self._copied:
            self._copy = None  # before the next one is made: two need not fit
            # cutting makes new parameters and writes into none, so the old ones may be the model's own
            self._copy = copy.deepcopy(self.whole, {id(p): p for p in weights})
            self._copied = versions
            self._alive = Mask.ones(self.sites)
        now = Mask({name: mask[name][alive] for name, alive in self._alive.items()})
        if not all(m.all() for m in now.values()):
            cut(self._copy, now, report=False)
        self._alive = Mask(mask)
        return self._copy
