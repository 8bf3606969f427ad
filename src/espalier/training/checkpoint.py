"""The state of a training: weights, moments and a step, in one safetensors file, whole or not at all."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import EspalierError
from ..io.atomic import STATES

STATE_VERSION = 1


def state_file(folder: Path) -> Path:
    return folder / STATES / "state.safetensors"


def read_state(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a state says of itself, and its tensors."""
    from safetensors import safe_open

    with whole(file):
        with safe_open(file, "pt") as state:
            about = json.loads(state.metadata()["espalier"])
            tensors = {name: state.get_tensor(name) for name in state.keys()}  # noqa: SIM118
        if about["version"] > STATE_VERSION:
            raise ValueError("a newer espalier wrote it")
        if about["checksum"] != checksum(tensors):
            raise ValueError("its checksum is wrong")
        return about, tensors


@contextmanager
def whole(file: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise EspalierError(
            f"the state of the interrupted training, {file}, cannot be used: {error}. "
            "Start over with --fresh (in Python: fresh=True)"
        ) from None


@contextmanager
def room(folder: Path) -> Iterator[None]:
    """What cannot be written ends in a sentence, and the state before it stays."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, EspalierError) as error:
        with suppress(OSError):
            state_file(folder).with_suffix(".part").unlink()
        cause = error.__cause__ or error  # the store says more than is true here
        why = getattr(cause, "strerror", None) or cause
        hope = ", or choose another place"
        if state_file(folder).exists():
            hope = ": the last state is kept, and the same command goes on from there"
        raise EspalierError(f"cannot write {folder}: {why}. Make room{hope}") from error


def checksum(tensors: Mapping[str, Tensor]) -> int:
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].flatten().view(torch.uint8).numpy().data, total)
    return total


def weights_of(model: Any) -> dict[str, Tensor]:
    """Parameters and buffers by name, tied ones once."""
    named = model.state_dict(keep_vars=True).items()
    return dict({id(t): (name, t) for name, t in named}.values())
