"""Text from an exported language model: greedy decoding in its own runtime. Torch is not imported."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import FolderError, FormatError, InvalidValueError
from ..io.files import read_json
from ..io.paths import EXPORT_RECORD, EXPORTED, GENERATION
from .runtime import OpenedFile, open_file

NAMES = ("input_ids", "attention_mask", "token_type_ids")


def open_generator(folder: str | Path, threads: int | None = None) -> Generator:
    """Open an exported language model to generate with; `threads` is by default OMP_NUM_THREADS, or all."""
    folder = Path(folder)
    if not (folder / EXPORT_RECORD).is_file():
        raise FolderError(f"{folder} holds no exported model: it has no {EXPORT_RECORD}", folder)
    record = read_json(folder / EXPORT_RECORD)
    to = record.get("to")
    limits = [record.get(name) for name in ("positions", "longest", "largest_batch")]
    known = all(isinstance(one, int | None) for one in limits) and _reads_text(record)
    if to not in list(EXPORTED) or not known:
        raise FormatError(f"{folder / EXPORT_RECORD} is damaged, or was not written by espalier", folder)
    if not (folder / GENERATION).is_file():
        raise FolderError(f"{folder} holds no language model: it has no {GENERATION}", folder)
    about = read_json(folder / GENERATION)
    ends, padding = about.get("eos_token_id"), about.get("pad_token_id")
    stop = [] if ends is None else ends if isinstance(ends, list) else [ends]
    padding = next(iter(stop), 0) if padding is None else padding
    if any(type(token) is not int for token in (padding, *stop)):
        raise FormatError(f"{folder / GENERATION} is damaged: tokens are whole numbers", folder)
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    threads = threads or (int(chosen) if chosen.isdecimal() else 0) or os.cpu_count() or 1
    run = open_file(folder / EXPORTED[to], to, threads, record.get("outputs", ()))
    longest = min((one for one in limits[:2] if one is not None), default=None)
    return Generator(run, tuple(record["inputs"]), frozenset(stop), padding, longest, limits[2])


def _reads_text(record: Mapping[str, Any]) -> bool:
    inputs = record.get("inputs")
    return isinstance(inputs, list) and "input_ids" in inputs and all(one in NAMES for one in inputs)


@dataclass(frozen=True)
class Generator:
    """A language model in its own runtime. Without a cache in its file it reads all text at each step."""

    run: OpenedFile
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    stop: Collection[int] = ()
    padding: int = 0
    longest: int | None = None  # tokens, prompt and new ones together
    largest_batch: int | None = None

    def generate(
        self,
        input_ids: np.ndarray,
        attention_mask: np.ndarray | None = None,
        *,
        max_new_tokens: int = 32,
    ) -> np.ndarray:
        """Return prompts and the likeliest token after token; prompts of a batch are padded on the left."""
        ids = np.asarray(input_ids, dtype=np.int64)
        mask = np.ones_like(ids) if attention_mask is None else np.asarray(attention_mask, dtype=np.int64)
        self._check(ids, mask, max_new_tokens)
        if not mask.all() and not self.run.past:  # the file counts padding as positions
            return self._one_by_one(ids, mask, max_new_tokens)
        ended, past, new = np.zeros(len(ids), bool), self.run.empty_past(len(ids)), ids
        for _ in range(max_new_tokens):
            read = new if past else ids
            known = {"input_ids": read, "attention_mask": mask, "token_type_ids": np.zeros_like(read)}
            given = {name: known[name] for name in self.inputs}
            if past:
                found, past = self.run.step(given, past)
            else:
                found = self.run(given)
            best = found["logits"][:, -1].argmax(-1)
            new = np.where(ended, self.padding, best)[:, None]
            ids, mask = np.concatenate([ids, new], 1), np.concatenate([mask, np.ones_like(new)], 1)
            ended |= np.isin(new[:, 0], list(self.stop))
            if ended.all():
                break
        return ids

    def _one_by_one(self, ids: np.ndarray, mask: np.ndarray, more: int) -> np.ndarray:
        """Return what each prompt gives without its padding."""
        rows = [self.generate(row[kept > 0][None], max_new_tokens=more)[0] for row, kept in zip(ids, mask)]
        new = [row[kept.sum() :] for row, kept in zip(rows, mask)]
        longest = max(map(len, new))
        filled = [np.pad(one, (0, longest - len(one)), constant_values=self.padding) for one in new]
        return np.concatenate([ids, np.stack(filled)], 1)

    def _check(self, ids: np.ndarray, mask: np.ndarray, more: int) -> None:
        if ids.ndim != 2 or not ids.size or ids.shape != mask.shape:
            raise InvalidValueError(
                f"`input_ids` and `attention_mask` are [batch, tokens]; got {ids.shape} and {mask.shape}",
                "input_ids",
            )
        if not mask[:, -1].all():
            raise InvalidValueError("prompts are padded on the left: set `padding_side`", "attention_mask")
        if more < 1:
            raise InvalidValueError(f"`max_new_tokens` is at least 1; got {more}", "max_new_tokens")
        if self.longest is not None and ids.shape[1] + more > self.longest:
            raise InvalidValueError(
                f"{ids.shape[1]} tokens and {more} new ones, but the model has room for {self.longest}",
                "max_new_tokens",
            )
        if self.largest_batch is not None and len(ids) > self.largest_batch:
            raise InvalidValueError(
                f"{len(ids)} prompts, but the file holds at most {self.largest_batch}", "input_ids"
            )
