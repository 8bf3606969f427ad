"""Runtimes of exported models: a file becomes a function from arrays to arrays. Torch is not imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import FormatError, UnknownNameError
from ..io.plugin import import_optional

Arrays = dict[str, np.ndarray]
Run = Callable[[Arrays], Arrays]


def open_file(file: Path, to: str, threads: int, outputs: Sequence[str] = ()) -> Run:
    """Open a model file in its runtime, on the CPU in fp32; `outputs` are named where the file does not."""
    if to not in RUNTIMES:
        raise UnknownNameError("runtime", to, RUNTIMES, "to")
    try:
        return RUNTIMES[to](file, threads, outputs)
    except (ImportError, ValueError):
        raise
    except Exception as error:  # each runtime has its own; a damaged file is the user's to replace
        first = " ".join(str(error).split())[:300]
        raise FormatError(f"{to} cannot open {file}: {first}", file) from error


def _open_onnx(file: Path, threads: int, outputs: Sequence[str]) -> Run:
    runtime: Any = import_optional("onnxruntime", "onnx", "running an ONNX model")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    wanted = {one.name for one in session.get_inputs()}

    def run(inputs: Arrays) -> Arrays:
        given = {name: value for name, value in inputs.items() if name in wanted}
        return dict(zip(names, session.run(names, given)))

    return run


def _open_openvino(file: Path, threads: int, outputs: Sequence[str]) -> Run:
    openvino: Any = import_optional("openvino", "openvino", "running an OpenVINO model")
    # processors with bf16 would otherwise compute in it
    how = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    compiled = openvino.Core().compile_model(str(file), "CPU", how)
    request = compiled.create_infer_request()
    names = [port.get_any_name() for port in compiled.outputs]
    wanted = {name for port in compiled.inputs for name in port.get_names()}

    def run(inputs: Arrays) -> Arrays:
        given = {name: value for name, value in inputs.items() if name in wanted}
        found = request.infer(given, share_inputs=True)
        return {name: np.array(found[i]) for i, name in enumerate(names)}

    return run


def _open_executorch(file: Path, threads: int, outputs: Sequence[str]) -> Run:
    runtime: Any = import_optional("executorch.runtime", "executorch", "running an ExecuTorch model")
    import torch

    method = runtime.Runtime.get().load_program(str(file)).load_method("forward")

    def run(inputs: Arrays) -> Arrays:  # by position; the number of threads is the runtime's own
        found = method.execute([torch.from_numpy(value) for value in inputs.values()])
        return {name: np.array(one) for name, one in zip(outputs, found)}

    return run


RUNTIMES: dict[str, Callable[[Path, int, Sequence[str]], Run]] = {
    "onnx": _open_onnx,
    "openvino": _open_openvino,
    "executorch": _open_executorch,
}
