"""How many bytes a model takes in a dense and in a sparse file, without writing either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..core.types import PreTrainedModel
from ..evaluation.cost import sparsity
from . import encodings
from .sparse_file import OVERHEAD

if TYPE_CHECKING:
    from ..architectures.site import WeightSite


def sparse_cost(
    model: PreTrainedModel, sites: Sequence[WeightSite], dtype: torch.dtype | None = None
) -> dict[str, Any]:
    """Return what a row records of a model with zeros, stored in `dtype`; zeros and weights of the sites."""
    found = sparsity(model, sites)
    counts = {name: getattr(found, name) for name in ("parameters", "zeros", "weights", "all_zeros")}
    return {**counts, "bytes": file_sizes(model, dtype)}


def file_sizes(model: nn.Module, dtype: torch.dtype | None = None) -> dict[str, int]:
    """Return the bytes of all tensors in a dense and in a sparse file, without the headers.

    With a `dtype`, as if the model were stored in it.
    """
    dense = sparse = 0
    seen = set()
    for tensor in model.state_dict().values():
        memory = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and memory in seen:
            continue  # tied: it is in the file once
        seen.add(memory)
        if dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(dtype)
        plain = encoded = tensor.nbytes
        # A bitmap costs one bit per weight: with fewer zeros than pay for it, no encoding is smaller.
        if int((tensor == 0).sum()) * 8 * tensor.element_size() > tensor.numel():
            encoded = encodings.size(encodings.best_spec(tensor))
        dense += plain
        sparse += encoded if encoded + OVERHEAD < plain else plain
    return {"dense": dense, "sparse": sparse}
