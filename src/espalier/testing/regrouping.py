"""The same examples in other batches: one by one, or all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Batch = Mapping[str, Any]


def alone(batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """Batches of one example each."""
    out = []
    for batch in batches:
        size = next(len(v) for v in batch.values() if isinstance(v, Tensor))
        for i in range(size):
            one = {k: v[i : i + 1] if isinstance(v, Tensor) else v for k, v in batch.items()}
            if "input_ids" in one:  # without a mask padding could not be told from text later
                one.setdefault("attention_mask", torch.ones_like(one["input_ids"]))
            out.append(one)
    return out


def together(singles: Sequence[Batch], *, padding: int = 0) -> dict[str, Any]:
    """One batch of them all; where texts differ in length, `padding` tokens on the right."""
    fill = {"input_ids": padding, "labels": -100}
    out = dict(singles[0])
    for name, first in out.items():
        if not isinstance(first, Tensor):
            continue
        rows = [one[name] for one in singles]
        if first.dim() == 2 and not first.is_floating_point():
            longest = max(row.shape[1] for row in rows)
            rows = [
                nn.functional.pad(row, (0, longest - row.shape[1]), value=fill.get(name, 0)) for row in rows
            ]
        out[name] = torch.cat(rows)
    return out
