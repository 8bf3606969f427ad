"""Whether an exported model answers as torch does, in its own runtime, at several shapes."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel
from ..engine.gates import frozen_eval
from .runtime import Run
from .sample import sample, shapes

TOLERANCE = 1e-4


def compare_outputs(model: PreTrainedModel, run: Run, names: list[str]) -> list[dict[str, Any]]:
    """Return the largest difference from torch at every shape; of padding nothing is compared."""
    found = []
    for batch_size, length in shapes(model):
        inputs = sample(model, names, batch_size, length, seed=length)
        with frozen_eval(model), torch.inference_mode():
            wanted = model(**inputs, **({"use_cache": False} if "use_cache" in _takes(model) else {}))
        given = run({name: value.numpy() for name, value in inputs.items()})
        real = inputs["attention_mask"].bool()
        worst = 0.0
        for name, array in given.items():
            want, got = getattr(wanted, name), torch.from_numpy(array)
            if want.shape != got.shape:
                raise UnsupportedError(f"{name} has the shape {tuple(got.shape)}, not {tuple(want.shape)}")
            if want.shape[:2] == real.shape and want.dim() > 2:
                want, got = want[real], got[real]
            apart = (want - got).abs().nan_to_num(nan=math.inf)  # NaN is not equal to anything
            worst = max(worst, float(apart.max()))
        found.append({"batch_size": batch_size, "length": length, "difference": worst})
    return found


def are_equal(found: list[dict[str, Any]]) -> bool:
    """Whether every difference is within the tolerance; NaN is not."""
    return all(one["difference"] <= TOLERANCE for one in found)


def _takes(model: Any) -> Any:
    import inspect

    return inspect.signature(model.forward).parameters
