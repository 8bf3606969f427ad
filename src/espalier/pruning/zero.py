"""Changing the values of single weights; shapes stay the same, so the model is not faster."""

import torch

from ..architectures.sites import ALSO, check_mask, sites
from ..core.mask import Mask
from ..core.terminal import log
from ..core.types import PreTrainedModel


def zero(model: PreTrainedModel, mask: Mask) -> PreTrainedModel:
    """Set every weight that the mask does not keep to zero, in place, and return the model."""
    found = {site.name: site for site in sites(model, "weights", also=ALSO)}
    mask = check_mask(mask, found)
    if all(m.all() for m in mask.values()):
        log.warning("nothing to zero: the mask keeps every weight")
    with torch.no_grad():
        for name, m in mask.items():
            weight = found[name].linear.weight
            weight.masked_fill_(~m.bool().to(weight.device), 0)  # times zero would leave half of them −0.0
    return model
