"""Half of the heads with espalier: of a tiny model, for table one, and of BERT-base, for table two."""

import torch
from transformers import AutoModel

from espalier import Batches, Mask, criteria, cut, load, masked, remove_lowest, save, sites

from .check import compare, far, reload
from .models import REMOVE, tiny


def half(family):
    """Half of each layer's heads."""
    pruned, whole = tiny(family), tiny(family)
    scores = criteria.load("magnitude")(pruned, sites(pruned, "heads"))
    mask = remove_lowest(scores, REMOVE, scope="layer")  # as the other tool is asked to
    cut(pruned, mask)
    found = compare(pruned, family)
    with masked(whole, mask):
        found["difference"] = max(found["difference"], far(pruned, whole))
    return found | {"from_pretrained": reload(pruned, save, AutoModel.from_pretrained, load)}


def by_gradients(model, batches):
    scores = criteria.load("taylor")(model, sites(model, "heads"), Batches(batches))
    cut(model, remove_lowest(scores, REMOVE))


def by_magnitude(model, _):
    scores = criteria.load("magnitude")(model, sites(model, "heads"))
    cut(model, remove_lowest(scores, REMOVE))


def every_other(model, _):
    cut(
        model,
        Mask({site.name: torch.arange(site.units) % 2 == 0 for site in sites(model, "heads")}),
    )
