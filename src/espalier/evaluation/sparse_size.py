"""What zeros are worth: counts, and the bytes that a sparse file of the model takes."""

from __future__ import annotations

import math
from typing import Any

from ..storage import encodings
from ..storage.sparse_file import WORTH
from .cost import sparsity


def weighed(model: Any, sites: Any) -> dict[str, Any]:
    """Zeros, and how many times smaller: the pruned matrices, the model, the file on the disk."""
    counted = sparsity(model, sites)
    dense, sparse = sizes(model)
    return {
        "zeros": counted.zeros,
        "weights": counted.weights,
        "all_zeros": counted.all_zeros,
        "parameters": counted.parameters,
        "bytes": {"dense": dense, "sparse": sparse},
        "compression": {
            "matrices": _finite(counted.compression["matrices"]),
            "model": _finite(counted.compression["model"]),
            "file": _finite(dense / sparse if sparse else math.inf),
        },
    }


def _finite(times: float) -> float | None:
    """Of nothing left there is no number; JSON has no infinity."""
    return times if math.isfinite(times) else None


def sizes(model: Any) -> tuple[int, int]:
    """Bytes of all tensors in a plain and in a sparse file, without the header of either."""
    dense = sparse = 0
    seen = set()
    for tensor in model.state_dict().values():
        place = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and place in seen:
            continue  # tied: it is in the file once
        seen.add(place)
        plain = tensor.numel() * tensor.element_size()
        best = plain
        # One bit a weight says where the zeros are: with fewer zeros than that, no encoding pays.
        if int((tensor == 0).sum()) * 8 * tensor.element_size() > tensor.numel():
            best = encodings.size(encodings.best_encoding(tensor.detach().cpu()))
        dense += plain
        sparse += best if best + WORTH < plain else plain
    return dense, sparse
