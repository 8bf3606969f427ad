"""ONNX files: traced by transformers' own exporter, attention fused layer by layer, int8 by ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel
from ..engine.token_places import dropper_of
from ..io.plugin import import_optional
from .attention import fused_attention
from .equality import check_equality
from .past import Layers, caching
from .runtime import PAST, PRESENT, open_file
from .sample import dynamic_shapes, traced_inputs
from .silence import silenced

EXTRA, PURPOSE = "onnx", "exporting to ONNX"
LARGEST = 2**31 - 2**20  # bytes that one protocol buffer can hold, with some room
FUSED = ("MultiHeadAttention", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "BiasGelu")
QUANTISED = ["MatMul", "Gather"]  # not Gemm: heads are small and stay exact


def write_onnx(
    model: PreTrainedModel, names: list[str], file: Path, layers: Layers | None = None
) -> dict[str, Any]:
    """Write a model and return how its outputs compare; fused if that changes nothing, else as traced.

    With `layers` the keys and values of these are inputs and outputs.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        import_optional(package, EXTRA, PURPOSE)
    if sum(p.nbytes for p in model.parameters()) > LARGEST:
        raise UnsupportedError("the model is larger than the 2 GiB that one ONNX file can hold")
    refused = ""
    for fuse in (True, False):
        try:
            _trace(model, names, file, layers or {}, fuse=fuse)
            run = open_file(file, "onnx", torch.get_num_threads())
            found = check_equality(model, run, names, "ONNX Runtime")
            return {**found, "fused": count_fused(file), "refused": refused}
        except UnsupportedError as error:
            if not fuse:
                raise
            refused = str(error)
    raise AssertionError  # the second turn returns or raises


def _trace(model: PreTrainedModel, names: list[str], file: Path, layers: Layers, *, fuse: bool) -> None:
    from transformers.exporters import OnnxConfig, OnnxExporter

    if dropper_of(model) is not None:
        raise UnsupportedError(
            "the model drops tokens, as many as a text has, which no file for a runtime can hold. Run it in "
            "torch, or export it with set_schedule(model, None), which reads all tokens"
        )
    inputs = traced_inputs(model, names, layers)
    how = OnnxConfig(dynamic_shapes=dynamic_shapes(inputs), output_path=str(file), external_data=False)
    with ExitStack() as during:
        during.enter_context(silenced())
        if fuse:
            during.enter_context(fused_attention(model))
        if layers:
            during.enter_context(caching(model, layers))
        try:
            OnnxExporter().export(model, inputs, how)
        except UnsupportedError:
            raise
        except Exception as error:  # tracing, decomposing and translating each have errors of their own
            raise UnsupportedError(
                f"{type(model).__name__} cannot become ONNX: {describe_cause(error)}"
            ) from error
        name_dimensions(file)
        if fuse:
            _fuse_rest(file)


def _fuse_rest(file: Path) -> None:
    """Let ONNX Runtime's optimizer fuse norms and activations; its own attention patterns are not needed."""
    from onnxruntime.transformers import optimizer

    try:
        optimizer.optimize_model(str(file), "bert", opt_level=0).save_model_to_file(str(file))
    except Exception as error:
        raise UnsupportedError(
            f"ONNX Runtime's optimizer cannot read the graph: {describe_cause(error)}"
        ) from error


def name_dimensions(file: Path) -> None:
    """Name the dimensions that vary: `batch`, `length`, of a cache `past`, and `total`, which is both."""
    import onnx

    graph = onnx.load(str(file))
    cached = any(port.name.startswith(f"{PAST}.") for port in graph.graph.input)
    for port in (*graph.graph.input, *graph.graph.output):
        names = {1: "length"}
        if port.name == "attention_mask" and cached:
            names = {1: "total"}
        elif port.name.startswith((f"{PAST}.", f"{PRESENT}.")):
            names = {2: "past" if port.name.startswith(PAST) else "total"}
        for i, dimension in enumerate(port.type.tensor_type.shape.dim):
            if dimension.dim_param:
                dimension.dim_param = ({0: "batch"} | names).get(i, "length")
    del graph.graph.value_info[:]  # shapes by the old names, and of weights that quantisers replace
    onnx.save(graph, str(file))


def count_fused(file: Path) -> dict[str, int]:
    """Count the fused operators of a file."""
    import onnx

    found = Counter(node.op_type for node in onnx.load(str(file), load_external_data=False).graph.node)
    return {name: found[name] for name in FUSED if found[name]}


def quantise_onnx(
    source: Path, target: Path, calibration: Iterable[Mapping[str, Any]] | None
) -> dict[str, Any]:
    """Write a file with eight-bit weights; ranges of activations come from calibration data or each batch."""
    from onnx import TensorProto
    from onnxruntime import quantization

    kind, narrow = quantization.QuantType, not has_vnni()
    how: Any = {"per_channel": True, "weight_type": kind.QInt8, "reduce_range": narrow}
    # no shapes are inferred behind operators of the runtime's own
    how["extra_options"] = {"DefaultTensorType": TensorProto.FLOAT}
    with silenced():
        try:
            if calibration is None:
                quantization.quantize_dynamic(source, target, op_types_to_quantize=QUANTISED, **how)
            else:
                how |= {"activation_type": kind.QUInt8, "quant_format": quantization.QuantFormat.QDQ}
                how |= {"op_types_to_quantize": QUANTISED[:1]}
                _type_activations(source)
                quantization.quantize_static(source, target, _reader(calibration), **how)
        except Exception as error:
            raise UnsupportedError(
                f"ONNX Runtime cannot quantise the graph: {describe_cause(error)}"
            ) from error
    return {"quantiser": "onnxruntime.quantization", "reduce_range": narrow}


def _type_activations(file: Path) -> None:
    """Say that what enters and leaves products is fp32: the quantiser leaves out what it has no type of."""
    import onnx

    model = onnx.load(str(file))
    weights = {one.name for one in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in weights]
    for name in dict.fromkeys(name for node in products for name in (node.input[0], node.output[0])):
        typed = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        model.graph.value_info.append(typed)
    onnx.save(model, str(file))


def has_vnni() -> bool:
    """Whether this processor multiplies bytes without saturation; without that, weights have seven bits."""
    try:
        flags = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return False
    return "vnni" in flags or "asimddp" in flags


def _reader(batches: Iterable[Mapping[str, Any]]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left: Iterator[Mapping[str, Any]] = iter(batches)

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.left, None)
            return None if batch is None else {name: value.numpy() for name, value in batch.items()}

    return Reader()


def describe_cause(error: BaseException) -> str:
    """Return the innermost cause in one line, without the advice to read a log."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
