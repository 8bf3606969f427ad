"""OpenVINO files: traced by transformers' own exporter, int8 by NNCF, OpenVINO's quantiser."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel
from ..io.plugin import import_optional
from .equality import check_equality
from .onnx_file import describe_cause
from .past import Layers, caching
from .runtime import open_file
from .sample import dynamic_shapes, traced_inputs
from .silence import silenced

EXTRA, PURPOSE = "openvino", "exporting to OpenVINO"


def write_openvino(
    model: PreTrainedModel, names: list[str], file: Path, layers: Layers | None = None
) -> dict[str, Any]:
    """Write a model and return how its outputs compare; attention is one operator where torch has it so.

    With `layers` the keys and values of these are inputs and outputs.
    """
    openvino: Any = import_optional("openvino", EXTRA, PURPOSE)
    inputs = traced_inputs(model, names, layers or {})
    with silenced():
        from transformers.exporters import OpenVINOConfig, OpenVINOExporter

        how = OpenVINOConfig(dynamic_shapes=dynamic_shapes(inputs), stateful=False)
        try:
            with caching(model, layers) if layers else nullcontext():
                made = OpenVINOExporter().export(model, inputs, how)
        except Exception as error:  # tracing and converting each have errors of their own
            raise UnsupportedError(
                f"{type(model).__name__} cannot become OpenVINO: {describe_cause(error)}"
            ) from error
        openvino.save_model(made, str(file), compress_to_fp16=False)
    fused = sum(node.get_type_name() == "ScaledDotProductAttention" for node in made.get_ops())
    found = check_equality(model, open_file(file, "openvino", torch.get_num_threads()), names, "OpenVINO")
    return {**found, "fused": {"ScaledDotProductAttention": fused} if fused else {}, "refused": ""}


def quantise_openvino(
    source: Path, target: Path, calibration: Iterable[Mapping[str, Any]] | None
) -> dict[str, Any]:
    """Write a file with eight-bit weights and, with calibration data, eight-bit activations."""
    with silenced():
        openvino: Any = import_optional("openvino", EXTRA, PURPOSE)
        nncf: Any = import_optional("nncf", EXTRA, "int8 for OpenVINO")
        model = openvino.Core().read_model(str(source))
        try:
            if calibration is None:
                made = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
            else:
                batches = [{name: value.numpy() for name, value in batch.items()} for batch in calibration]
                kind = nncf.ModelType.TRANSFORMER
                made = nncf.quantize(model, nncf.Dataset(batches), model_type=kind, subset_size=len(batches))
        except Exception as error:
            raise UnsupportedError(f"NNCF cannot quantise the graph: {describe_cause(error)}") from error
        openvino.save_model(made, str(target), compress_to_fp16=False)
    return {"quantiser": "nncf"}
