"""Whether an exported model answers as torch does, in its own runtime: at once, and token by token."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from ..architectures.table import position_limit
from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel
from ..engine.passes import frozen_eval
from .generation import Generator
from .past import positions_of
from .runtime import OpenedFile, Run
from .sample import sample, shapes

TOLERANCE = 1e-4
STEPS = (9, 1, 1, 4, 1)  # tokens that are given at a time
GENERATED = 8  # tokens after a prompt


def check_equality(model: PreTrainedModel, run: OpenedFile, names: list[str], runtime: str) -> dict[str, Any]:
    """Compare whole sequences and, if a file has a cache, steps and generated text; raise if they differ."""
    found: dict[str, Any] = {"checked": compare_outputs(model, run, names)}
    if run.past:
        found["steps"] = compare_steps(model, run, names)
    for compared in found.values():
        if not are_equal(compared):
            worst = max(one["difference"] for one in compared)
            raise UnsupportedError(
                f"{runtime} does not compute what torch does: outputs differ by {worst:.1e}"
            )
    return {**found, "generated": compare_generation(model, run, names)} if run.past else found


def compare_outputs(model: PreTrainedModel, run: Run, names: list[str]) -> list[dict[str, Any]]:
    """Return the largest difference from torch at every shape; of padding nothing is compared."""
    found = []
    for batch_size, length in shapes(model):
        inputs = sample(model, names, batch_size, length, seed=length)
        wanted = _ask(model, inputs)
        given = run({name: value.numpy() for name, value in inputs.items()})
        real = inputs["attention_mask"].bool()
        worst = max(_apart(getattr(wanted, name), array, real, name) for name, array in given.items())
        found.append({"batch_size": batch_size, "length": length, "difference": worst})
    return found


def compare_steps(model: PreTrainedModel, run: OpenedFile, names: list[str]) -> list[dict[str, Any]]:
    """Return the largest difference of every step with a cache from torch's one pass without."""
    found = []
    for batch_size in (1, 3):
        inputs = _padded_left(model, names, batch_size, _fitting(model, sum(STEPS)))
        mask = inputs["attention_mask"]
        wanted = _ask(model, inputs, positions=True).logits
        past, start = run.empty_past(batch_size), 0
        for step in STEPS:
            end = min(start + step, mask.shape[1])
            if start == end:
                break
            now = {name: value[:, start:end].numpy() for name, value in inputs.items()}
            out, past = run.step({**now, "attention_mask": mask[:, :end].numpy()}, past)
            worst = _apart(wanted[:, start:end], out["logits"], mask[:, start:end].bool(), "logits")
            about = {"batch_size": batch_size, "past": start, "length": end - start}
            found.append({**about, "difference": worst})
            start = end
    return found


def compare_generation(model: PreTrainedModel, run: OpenedFile, names: list[str]) -> int:
    """Return how many tokens were generated as torch's `generate` does; raise where another is chosen.

    Of two tokens that are equally likely within the tolerance, either is right, and the row ends there.
    """
    from transformers import GenerationConfig

    inputs = _padded_left(model, names, 2, _fitting(model, 9, GENERATED))
    if "token_type_ids" in inputs:
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    prompt = inputs["input_ids"].shape[1]
    how = {"max_new_tokens": GENERATED, "min_new_tokens": GENERATED, "do_sample": False, "pad_token_id": 0}
    before = model.generation_config
    try:
        model.generation_config = GenerationConfig(**how)  # nothing of the model's own habits
        with frozen_eval(model):
            wanted: Tensor = model.generate(**inputs)  # type: ignore[operator]
    finally:
        model.generation_config = before
    arrays = {name: inputs[name].numpy() for name in ("input_ids", "attention_mask")}
    got = torch.from_numpy(Generator(run, tuple(names)).generate(**arrays, max_new_tokens=GENERATED))
    new = torch.ones(len(wanted), GENERATED, dtype=torch.long)
    whole = {"input_ids": wanted, "attention_mask": torch.cat([inputs["attention_mask"], new], 1)}
    if "token_type_ids" in inputs:
        whole["token_type_ids"] = torch.zeros_like(wanted)
    logits = _ask(model, whole, positions=True).logits
    equal = 0
    for row in range(len(wanted)):
        for place in range(prompt, wanted.shape[1]):
            likely, other = logits[row, place - 1, [wanted[row, place], got[row, place]]].tolist()
            if likely - other > TOLERANCE:
                raise UnsupportedError(
                    f"token {place - prompt + 1} of generated text is another than torch's"
                )
            if wanted[row, place] != got[row, place]:
                break
            equal += 1
    return equal


def are_equal(found: list[dict[str, Any]]) -> bool:
    """Whether every difference is within the tolerance; NaN is not."""
    return all(one["difference"] <= TOLERANCE for one in found)


def _apart(want: Tensor, array: Any, real: Tensor, name: str) -> float:
    got = torch.from_numpy(array)
    if want.shape != got.shape:
        raise UnsupportedError(f"{name} has the shape {tuple(got.shape)}, not {tuple(want.shape)}")
    if want.shape[:2] == real.shape and want.dim() > 2:
        want, got = want[real], got[real]
    apart = (want - got).abs().nan_to_num(nan=math.inf)  # NaN is not equal to anything
    return float(apart.max()) if apart.numel() else 0.0


def _ask(model: PreTrainedModel, inputs: dict[str, Tensor], *, positions: bool = False) -> Any:
    """Return torch's output without a cache; with `positions`, counted as in generation."""
    takes = inspect.signature(model.forward).parameters
    more: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
    if positions and "position_ids" in takes:
        more["position_ids"] = positions_of(inputs["attention_mask"])
    with frozen_eval(model), torch.inference_mode():
        return model(**inputs, **more)


def _padded_left(model: PreTrainedModel, names: list[str], batch_size: int, length: int) -> dict[str, Tensor]:
    inputs = sample(model, names, batch_size, length, seed=length)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if batch_size > 1:
        inputs["attention_mask"][0, : length // 3] = 0
    return inputs


def _fitting(model: PreTrainedModel, length: int, more: int = 0) -> int:
    """Return a length that leaves room for `more` among the model's positions."""
    limit = position_limit(model)
    return length if limit is None else max(1, min(length, limit - more))
