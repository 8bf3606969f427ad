"""A pruned net in a folder: what it keeps in plan.json, its weights in model.safetensors."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_model
from torch import Tensor, nn

from ..core.errors import FormatError
from ..core.mask import Plan
from ..io.files import reading
from ..io.output import write_folder
from ..io.paths import PLAN, WEIGHTS
from .filters import remove_filters


def save_net(net: nn.Module, plan: Plan, folder: str | Path, *, overwrite: bool = False) -> Path:
    """Write a pruned net; its code is not stored, so whoever loads it builds the dense net first."""
    with write_folder(folder, "convnet", overwrite=overwrite) as place:
        plan.save(place / PLAN)
        save_model(net, str(place / WEIGHTS))
    return Path(folder)


def load_net(net: nn.Module, folder: str | Path, example: Tensor) -> nn.Module:
    """Cut a newly built dense net as the folder says, in place, and load its weights."""
    place = Path(folder)
    remove_filters(net, Plan.load(place / PLAN).mask(), example)
    with reading(place / WEIGHTS, "a safetensors file"):
        weights = load_file(place / WEIGHTS)
    shapes = {name: tuple(t.shape) for name, t in net.state_dict().items()}
    wrong = [n for n, t in weights.items() if shapes.get(n, tuple(t.shape)) != tuple(t.shape)]
    missing = sorted(shapes.keys() ^ weights.keys())
    if wrong or missing:
        raise FormatError(
            f"{folder} holds another net: {', '.join([*wrong, *missing][:5])} do not fit", folder
        )
    net.load_state_dict(weights)
    return net
