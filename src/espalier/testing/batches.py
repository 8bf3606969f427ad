"""The same examples in other batches: one by one, or all in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batches import examples_in

Batch = Mapping[str, Any]


def split_examples(batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """Return batches of one example each."""
    out = []
    for batch in batches:
        for i in range(examples_in(batch)):
            one = {k: v[i : i + 1] if isinstance(v, Tensor) else v for k, v in batch.items()}
            if "input_ids" in one:  # without a mask, padding that is added later would count as text
                one.setdefault("attention_mask", torch.ones_like(one["input_ids"]))
            out.append(one)
    return out


def merge_examples(singles: Sequence[Batch], *, padding: int = 0) -> dict[str, Any]:
    """Return one batch of all examples; shorter texts get `padding` tokens on the right."""
    fill = {"input_ids": padding, "labels": -100}
    out = dict(singles[0])
    for name, first in out.items():
        if not isinstance(first, Tensor):
            continue
        rows = [one[name] for one in singles]
        if first.dim() == 2 and not first.is_floating_point():
            longest, value = max(row.shape[1] for row in rows), fill.get(name, 0)
            rows = [nn.functional.pad(row, (0, longest - row.shape[1]), value=value) for row in rows]
        out[name] = torch.cat(rows)
    return out
