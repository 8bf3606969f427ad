"""A copy of a model that is cut as masks remove units, so that a greedy loop runs the smaller model."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..architectures.site import Site, WeightSite
from ..architectures.sites import sites as find_sites
from ..architectures.sites import unwrapped
from ..core.mask import Mask
from ..core.types import PreTrainedModel
from ..engine.gates import masked
from .cut import cut

AnySites = Sequence[Site] | Sequence[WeightSite]


class WorkingCopy:
    """The model at any mask. Units that cannot be cut are gated, which gives the same outputs.

    Masks that remove more and more cost one cut each; a mask that keeps a unit again starts from a new copy,
    and so does a model that was trained meanwhile. The copy shares all weights that no cut touched.
    """

    def __init__(self, model: PreTrainedModel, sites: AnySites):
        self.whole = model
        self.sites = sites
        self.names = {site.name for site in sites}
        self.cuttable = all(isinstance(s, Site) and not s.spec.uncuttable for s in sites)
        if unwrapped(model) is not model:
            self.cuttable = False  # it has an adapter
        if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
            self.cuttable = False  # spread over devices, and too large for a second copy
        self._copy: PreTrainedModel | None = None
        self._copied: list[tuple[int, int]] = []  # the model's weights and their versions at that time
        self._kept = Mask.ones(sites)

    @contextmanager
    def at(self, mask: Mask) -> Iterator[tuple[PreTrainedModel, AnySites]]:
        """Give the model as the mask leaves it, and the sites of it that were asked for."""
        if not self.cuttable:
            with masked(self.sites, mask):
                yield self.whole, self.sites
            return
        model = self._follow(mask)
        yield model, [site for site in find_sites(model) if site.name in self.names]

    def _follow(self, mask: Mask) -> PreTrainedModel:
        restores = any((mask[name] & ~kept).any() for name, kept in self._kept.items())
        weights = list(self.whole.parameters())
        versions = [(id(p), p._version) for p in weights]
        if self._copy is None or restores or versions != self._copied:
            self._copy = None  # before the next one is made: two need not fit into memory
            # cutting makes new parameters and writes into none, so the old ones may be the model's own
            self._copy = copy.deepcopy(self.whole, {id(p): p for p in weights})
            self._copied = versions
            self._kept = Mask.ones(self.sites)
        now = Mask({name: mask[name][kept] for name, kept in self._kept.items()})
        if not all(m.all() for m in now.values()):
            cut(self._copy, now, report=False)
        self._kept = Mask(mask)
        return self._copy
