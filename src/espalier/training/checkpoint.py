"""The state of a training: weights, moments and a step in one safetensors file, written completely or not."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import EspalierError, FolderError, FormatError
from ..io.paths import TRAINING_STATE, TRAINING_STATE_FOLDER

STATE_VERSION = 2
OLD_TENSORS = {"regime/behind/": "callback/latent/", "regime/": "callback/"}  # of version 1


def state_file(folder: Path) -> Path:
    """Return where the state of a training in this folder is."""
    return folder / TRAINING_STATE_FOLDER / TRAINING_STATE


def write_state(file: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a state; the one before stays until this one is complete."""
    from safetensors.torch import save_file

    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    about = {"version": STATE_VERSION, **about, "checksum": checksum(tensors)}
    part = file.with_suffix(".part")
    with explain_unwritable(file.parent.parent):
        save_file(tensors, part, {"espalier": json.dumps(about)})
        with part.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(part, file)


def read_state(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the description of a state, such as its step, and its tensors."""
    from safetensors import safe_open

    with explain_unusable(file):
        with safe_open(file, "pt") as state:
            about = json.loads(state.metadata()["espalier"])
            tensors = {name: state.get_tensor(name) for name in state.keys()}  # noqa: SIM118
        if about["version"] > STATE_VERSION:
            raise ValueError("it was written by a newer espalier")
        if about["checksum"] != checksum(tensors):
            raise ValueError("its checksum is wrong")
        old = re.compile("|".join(OLD_TENSORS))
        return about, {old.sub(lambda m: OLD_TENSORS[m[0]], name, count=1): t for name, t in tensors.items()}


@contextmanager
def explain_unusable(file: Path) -> Iterator[None]:
    """Raise FormatError for whatever a damaged state raises."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RuntimeError) as error:
        message = f"the state {file} cannot be used: {error}. Start over with `overwrite`"
        raise FormatError(message, file) from None


@contextmanager
def explain_unwritable(folder: Path) -> Iterator[None]:
    """Raise FolderError for whatever a full disk raises, and remove a state that is half written."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, EspalierError) as error:
        with suppress(OSError):
            state_file(folder).with_suffix(".part").unlink()
        cause = error.__cause__ or error
        why = getattr(cause, "strerror", None) or cause
        advice = "Make room, or choose another `folder`"
        if state_file(folder).exists():
            advice = "Make room and run the same again: it resumes from the last state, which is kept"
        raise FolderError(f"cannot write {folder}: {why}. {advice}", folder) from error


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """Return a checksum of the values, in the order of their names."""
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].flatten().view(torch.uint8).numpy().data, total)
    return total


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, tied ones once."""
    named = model.state_dict(keep_vars=True).items()
    return dict({id(t): (name, t) for name, t in named}.values())
