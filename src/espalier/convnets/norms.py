"""Norms folded into the layer beside them: the same function with fewer operations.

Batch norm at inference is y = p·x + q with p = γ/σ and q = β − γμ/σ, so it goes into the convolution before
it. The scale and shift of a layer norm go into the linear layers after it, W·diag(γ) and b + Wβ; its
statistics are those of every input, and stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from ..core.errors import UnsupportedError
from .filters import CONVOLUTIONS, NORMS, _graph


def fold_batch_norms(net: nn.Module, example: Tensor) -> int:
    """Fold each batch norm into the layer whose output it alone reads, in place; return how many were folded.

    The net is in evaluation mode afterwards: with statistics of each batch there would be nothing to fold.
    """
    graph = _graph(net.eval(), example)
    names = {id(module): name for name, module in net.named_modules()}
    folded = 0
    for norm, node in list(graph.module2node.items()):
        before = node.inputs[0] if isinstance(norm, NORMS) and len(node.inputs) == 1 else None
        if before is None or len(before.outputs) != 1 or norm.running_var is None:
            continue
        layer = before.module
        if isinstance(layer, CONVOLUTIONS):
            fused: Any = fuse_conv_bn_eval(layer, norm)
        elif isinstance(layer, nn.Linear):
            fused = fuse_linear_bn_eval(layer, norm)
        else:
            continue
        _put(net, names[id(layer)], fused)
        _put(net, names[id(norm)], nn.Identity())
        folded += 1
    return folded


def fold_layer_norm(norm: Any, readers: Sequence[Any]) -> None:
    """Fold the scale and shift of a layer norm into all linear layers that read it, in place."""
    if getattr(norm, "weight", None) is None:
        return
    shift = getattr(norm, "bias", None)
    for layer in readers:
        if not isinstance(layer, nn.Linear):
            raise UnsupportedError(f"a layer norm folds into linear layers; got {type(layer).__name__}")
        if shift is not None and layer.bias is None and bool(shift.any()):
            layer.bias = nn.Parameter(torch.zeros(layer.out_features, dtype=layer.weight.dtype))
    with torch.no_grad():
        for layer in readers:
            if shift is not None and layer.bias is not None:
                layer.bias += layer.weight @ shift
            layer.weight *= norm.weight
        norm.weight.fill_(1)
        if shift is not None:
            shift.zero_()


def _put(net: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(net.get_submodule(parent), last, module)
