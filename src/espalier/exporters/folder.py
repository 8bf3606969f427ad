"""The folder of an exported model: its file, config, tokenizer, and a record of how it was checked."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..architectures.table import position_limit
from ..core.batches import Batches, model_inputs
from ..core.errors import DependencyError, EspalierError, InvalidValueError, UnknownNameError
from ..core.progress import OnProgress, Progress, ignore
from ..core.types import PreTrainedModel, PreTrainedTokenizerBase
from ..engine.passes import evaluating
from ..evaluation.cost import cost
from ..io.files import write_json
from ..io.output import write_folder
from ..io.paths import EXPORT_RECORD, EXPORTED, GENERATION
from ..storage.modules import copy_modules
from .emptiness import biases_for_empty_products
from .equality import TOLERANCE, compare_outputs
from .executorch_file import write_executorch
from .onnx_file import describe_cause, quantise_onnx, write_onnx
from .openvino_file import quantise_openvino, write_openvino
from .past import keeps_cache, kept_layers
from .runtime import open_file
from .sample import input_names

WRITERS: dict[str, Callable[..., dict[str, Any]]] = {
    "onnx": write_onnx,
    "openvino": write_openvino,
    "executorch": write_executorch,
}
QUANTISERS: dict[str, Callable[..., dict[str, Any]]] = {"onnx": quantise_onnx, "openvino": quantise_openvino}
RANGES = ("dynamic", "static")  # of activations in int8: those of each batch, or those of calibration data
USUAL = {"onnx": "dynamic", "openvino": "static"}
WITHOUT_CACHE = {"executorch": "ExecuTorch plans its memory before it runs"}  # and why
TARGETS = ("plain", *EXPORTED)


def check_target(to: str) -> None:
    """Raise for a target that is not known."""
    if to not in TARGETS:
        raise UnknownNameError("target", to, TARGETS, "to")


def ranges_of(to: str, int8: bool, ranges: str | None, calibrated: bool) -> str | None:
    """Return where the ranges of eight-bit activations come from; None without int8."""
    if not int8:
        if ranges is not None:
            raise InvalidValueError("`ranges` is for `int8`", "ranges")
        return None
    if to not in QUANTISERS:
        raise InvalidValueError(f"`int8` is for {' and '.join(QUANTISERS)}, not for {to}", "int8")
    if ranges is not None and ranges not in RANGES:
        raise UnknownNameError("source of ranges", ranges, RANGES, "ranges")
    if ranges == "static" and not calibrated:
        raise InvalidValueError(
            "static `ranges` need the `task` whose training examples they come from", "task"
        )
    return ranges or (USUAL[to] if calibrated else "dynamic")


def write_export(
    model: PreTrainedModel,
    folder: Path,
    to: str,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    source: Path | None = None,
    name: str = "model",
    ranges: str | None = None,
    calibration: Batches | None = None,
    kv_cache: bool = True,
    overwrite: bool = False,
    finish: Callable[[Path, dict[str, Any]], None] | None = None,
    on_progress: OnProgress = ignore,
) -> dict[str, Any]:
    """Export a model to a runtime, compare their outputs, quantise if there are `ranges`; return the record.

    Language models are exported with their cache where that is possible and `kv_cache` does not leave it out.
    `finish(place, record)` may add to the record before the folder is complete.
    """
    with write_folder(folder, f"{to} of {name}", overwrite=overwrite) as place:
        names = input_names(model, tokenizer)
        record: dict[str, Any] = {
            "version": 1,
            "to": to,
            "file": EXPORTED[to],
            "model": name,
            "inputs": names,
        }
        file = place / EXPORTED[to]
        with _for_export(model) as plain, biases_for_empty_products(plain):
            on_progress(Progress("exporting", message=f"exporting {name} to {to}"))
            record |= _write(plain, names, file, to, kv_cache)
            record |= {"tolerance": TOLERANCE, "int8": None}
            if ranges is not None:
                on_progress(Progress("quantising", message=f"quantising the {to} file to int8"))
                record["int8"] = _quantise(plain, file, to, names, ranges, calibration)
        record |= {"positions": position_limit(model), "counts": cost(model).dict()}
        record |= {"bytes": sum(one.stat().st_size for one in place.iterdir())}
        record |= {"class": type(model).__name__, "versions": _versions(to)}
        _write_config(model, place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
        beside = source or str(getattr(model.config, "_name_or_path", "") or "")
        copy_modules(beside, place, needed=model.base_model is model)
        write_json(place / EXPORT_RECORD, record)
        if finish is not None:
            finish(place, record)
            write_json(place / EXPORT_RECORD, record)
    return record


def _write(model: PreTrainedModel, names: list[str], file: Path, to: str, cached: bool) -> dict[str, Any]:
    """Write a model with its cache or, where that cannot be done, without; say why."""
    refused = ""
    if keeps_cache(model):
        refused = "left out" if not cached else WITHOUT_CACHE.get(to, "")
        if not refused:
            try:
                found = WRITERS[to](model, names, file, kept_layers(model))
                return {**found, "cache": True, "cache_refused": ""}
            except DependencyError:
                raise
            except Exception as error:  # a cache of another kind fails in a way of its own
                refused = str(error) if isinstance(error, EspalierError) else describe_cause(error)
    return {**WRITERS[to](model, names, file), "cache": False, "cache_refused": refused}


def _quantise(
    model: PreTrainedModel, file: Path, to: str, names: Sequence[str], ranges: str, batches: Batches | None
) -> dict[str, Any]:
    """Replace the file by one in eight bits; say how far its outputs are from torch's."""
    made = file.with_name(f"int8-{file.name}")
    data = None
    if ranges == "static":
        given = [model_inputs(batch, labels=False) for batch in batches or ()]
        data = [{name: batch[name].cpu() for name in names if name in batch} for batch in given]
        empty = open_file(file, to, torch.get_num_threads()).empty_past
        for batch in data:  # of whole sequences, before which there is nothing
            past = empty(len(batch["input_ids"]))
            batch |= {name: torch.from_numpy(array) for name, array in past.items()}
    about = {"ranges": ranges, "calibration": batches.examples if data and batches else 0}
    about |= QUANTISERS[to](file, made, data)
    for one in sorted(made.parent.glob(f"{made.stem}.*")):
        one.replace(one.with_name(one.name.removeprefix("int8-")))
    found = compare_outputs(model, open_file(file, to, torch.get_num_threads()), list(names))
    return {**about, "checked": found}


@contextmanager
def _for_export(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Give the model on the CPU in fp32, set to return its first outputs alone."""
    config = model.config
    quiet = {"use_cache": False, "output_attentions": False, "output_hidden_states": False}
    before = {name: getattr(config, name) for name in quiet if hasattr(config, name)}
    moved = model if model.device.type == "cpu" and model.dtype == torch.float32 else copy.deepcopy(model)
    try:
        for name in before:
            setattr(moved.config, name, quiet[name])
        with evaluating(moved):
            yield moved.float().cpu()  # type: ignore[call-arg]
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def _versions(to: str) -> dict[str, str]:
    import transformers

    found = {"espalier": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
    package = {"onnx": "onnxruntime"}.get(to, to)
    return {**found, package: version(package)}


def _write_config(model: PreTrainedModel, place: Path) -> None:
    """Write the config without what describes weights of torch."""
    config = copy.deepcopy(model.config)
    for name in ("quantization_config", "auto_map", "transformers_weights", "_attn_implementation_internal"):
        config.__dict__.pop(name, None)
    config.architectures = [type(model).__name__]
    config.save_pretrained(place)
    if model.can_generate():
        write_json(place / GENERATION, model.generation_config.to_diff_dict())  # type: ignore[union-attr]
