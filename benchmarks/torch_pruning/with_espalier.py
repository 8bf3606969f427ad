"""Half of the heads with espalier: of a tiny model, for table one, and of BERT-base, for table two."""

import torch
from transformers import AutoModel

from espalier import Batches, Mask, criteria, cut, load, masked, remove_lowest, save, sites

from .check import compare, largest_difference, reload
from .models import REMOVE, tiny


def half(family):
    """Remove half of each layer's heads, and return what came of it."""
    pruned, dense = tiny(family), tiny(family)
    scores = criteria.load("magnitude")(pruned, sites(pruned, "heads"))
    mask = remove_lowest(scores, REMOVE, scope="layer")  # as the other tool does
    cut(pruned, mask)
    found = compare(pruned, family)
    with masked(dense, mask):
        found["difference"] = max(found["difference"], largest_difference(pruned, dense))
    return found | {"from_pretrained": reload(pruned, save, AutoModel.from_pretrained, load)}


def by_gradients(model, batches):
    """Score by Taylor and cut."""
    scores = criteria.load("taylor")(model, sites(model, "heads"), Batches(batches))
    cut(model, remove_lowest(scores, REMOVE))


def by_magnitude(model, _):
    """Score by magnitude and cut."""
    scores = criteria.load("magnitude")(model, sites(model, "heads"))
    cut(model, remove_lowest(scores, REMOVE))


def every_other(model, _):
    """Cut every other head."""
    cut(model, Mask({site.name: torch.arange(site.units) % 2 == 0 for site in sites(model, "heads")}))
