"""An exported model that is called like one of transformers: tensors in, an output with tensors out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import FolderError, FormatError, InvalidValueError
from ..io.files import read_json
from ..io.paths import EXPORT_RECORD, EXPORTED, is_exported
from .generation import NAMES
from .runtime import Run, open_file


def open_exported(folder: str | Path, threads: int | None = None) -> ExportedModel:
    """Open an exported model in its own runtime; `threads` is by default what torch uses."""
    from transformers import AutoConfig

    folder = Path(folder)
    if not is_exported(folder):
        raise FolderError(f"{folder} holds no exported model: it has no {EXPORT_RECORD}", folder)
    record = read_json(folder / EXPORT_RECORD)
    if not _is_whole(record):
        raise FormatError(f"{folder / EXPORT_RECORD} is damaged, or was not written by espalier", folder)
    to = record["to"]
    file = folder / EXPORTED[to]
    if not file.is_file():
        raise FormatError(f"{file} is missing, though {EXPORT_RECORD} names it", file)
    run = open_file(file, to, threads or torch.get_num_threads(), record.get("outputs", ()))
    return ExportedModel(run, record, AutoConfig.from_pretrained(folder))


def _is_whole(record: Mapping[str, Any]) -> bool:
    """Whether a record holds what running and counting a model reads of it."""
    inputs, outputs = record.get("inputs"), record.get("outputs", [])
    counts = record.get("counts")
    return (
        record.get("to") in list(EXPORTED)
        and isinstance(inputs, list)
        and "input_ids" in inputs
        and all(name in NAMES for name in inputs)
        and isinstance(outputs, list)
        and all(isinstance(name, str) for name in outputs)
        and isinstance(counts, dict)
        and {"parameters", "macs", "tokens"} <= set(counts)
        and all(type(value) is int for value in (*counts.values(), record.get("bytes")))
        and all(_is_limit(record.get(name)) for name in ("positions", "longest", "largest_batch"))
    )


def _is_limit(value: Any) -> bool:
    return value is None or (type(value) is int and value > 0)


class ExportedModel(nn.Module):
    """Call a runtime as a model: tensors in, an output with tensors out. It has no weights of its own."""

    def __init__(self, run: Run, record: Mapping[str, Any], config: Any):
        super().__init__()
        self.run, self.record, self.config = run, record, config
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)  # says that it is on the CPU

    @property
    def device(self) -> torch.device:
        return self.place.device

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def longest(self) -> int | None:
        """The most tokens of a sequence: the model's positions, or what its runtime planned memory for."""
        limits = [self.record.get(name) for name in ("positions", "longest")]
        return min((one for one in limits if one is not None), default=None)

    @property
    def largest_batch(self) -> int | None:
        """The most sequences of a pass, if its runtime planned memory for a number of them."""
        return self.record.get("largest_batch")

    def forward(self, **inputs: Tensor) -> Any:
        ids, longest = inputs["input_ids"], self.longest
        if longest is not None and ids.shape[1] > longest:
            raise InvalidValueError(
                f"{ids.shape[1]} tokens, but the model has room for {longest}", "max_length"
            )
        defaults = {"attention_mask": torch.ones_like, "token_type_ids": torch.zeros_like}
        given = {
            name: (inputs[name] if name in inputs else defaults[name](ids)).numpy()
            for name in self.record["inputs"]
        }
        most = self.largest_batch
        if most is None or len(ids) <= most:
            found = self.run(given)
        else:
            starts = range(0, len(ids), most)
            parts = [self.run({name: x[i : i + most] for name, x in given.items()}) for i in starts]
            found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return SimpleNamespace(**{name: torch.from_numpy(x) for name, x in found.items()})
