"""How many bytes a model takes in a dense and in a sparse file, without writing either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from torch import nn

from ..core.types import PreTrainedModel
from ..evaluation.cost import sparsity
from . import encodings
from .sparse_file import OVERHEAD

if TYPE_CHECKING:
    from ..architectures.site import WeightSite


class Bytes(TypedDict):
    """Bytes of all tensors, without the header of the file."""

    dense: int
    sparse: int


class SparseCost(TypedDict):
    """What a row records of a model with zeros."""

    parameters: int
    zeros: int  # in the matrices of the sites
    weights: int  # in the matrices of the sites
    all_zeros: int
    bytes: Bytes


def sparse_cost(model: PreTrainedModel, sites: Sequence[WeightSite]) -> SparseCost:
    """Count the zeros of a model, and the bytes of its files."""
    found = sparsity(model, sites)
    return {
        "parameters": found.parameters,
        "zeros": found.zeros,
        "weights": found.weights,
        "all_zeros": found.all_zeros,
        "bytes": file_sizes(model),
    }


def file_sizes(model: nn.Module) -> Bytes:
    """Return the bytes of a dense and of a sparse file of the model."""
    dense = sparse = 0
    seen = set()
    for tensor in model.state_dict().values():
        memory = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and memory in seen:
            continue  # tied: it is in the file once
        seen.add(memory)
        plain = encoded = tensor.numel() * tensor.element_size()
        # A bitmap costs one bit per weight: with fewer zeros than pay for it, no encoding is smaller.
        if int((tensor == 0).sum()) * 8 * tensor.element_size() > tensor.numel():
            encoded = encodings.size(encodings.best_spec(tensor.detach().cpu()))
        dense += plain
        sparse += encoded if encoded + OVERHEAD < plain else plain
    return {"dense": dense, "sparse": sparse}
