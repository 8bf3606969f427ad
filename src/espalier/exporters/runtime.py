"""Runtimes of exported models: a file becomes a function from arrays to arrays. Torch is not imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import FormatError, UnknownNameError
from ..io.plugin import import_optional

Arrays = dict[str, np.ndarray]
Run = Callable[[Arrays], Arrays]
PAST, PRESENT = "past_key_values", "present"  # of cached keys: past_key_values.0.key, present.0.key


@dataclass(frozen=True)
class OpenedFile:
    """A model in its runtime. Call it with whole sequences, or go on from the cache of earlier ones."""

    infer: Callable[[Arrays, Sequence[str]], Arrays]
    outputs: Sequence[str]
    past: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # input -> heads, channels

    def __call__(self, inputs: Arrays) -> Arrays:
        """Return the outputs for whole sequences: the cache is empty, and the new one is not returned."""
        names = [name for name in self.outputs if not _is(PRESENT, name)]
        return self.infer({**self.empty_past(len(inputs["input_ids"])), **inputs}, names)

    def step(self, inputs: Arrays, past: Arrays) -> tuple[Arrays, Arrays]:
        """Return the outputs for new tokens, and the cache with these; `past` is that of earlier ones."""
        found = self.infer({**inputs, **past}, self.outputs)
        cached = {name: found.pop(name) for name in self.outputs if _is(PRESENT, name)}
        return found, {PAST + name.removeprefix(PRESENT): value for name, value in cached.items()}

    def empty_past(self, batch_size: int) -> Arrays:
        """Return a cache of no tokens."""
        return {
            name: np.zeros((batch_size, heads, 0, channels), np.float32)
            for name, (heads, channels) in self.past.items()
        }


def open_file(file: Path, to: str, threads: int, outputs: Sequence[str] = ()) -> OpenedFile:
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


def _open_onnx(file: Path, threads: int, outputs: Sequence[str]) -> OpenedFile:
    runtime: Any = import_optional("onnxruntime", "onnx", "running an ONNX model")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    wanted = {one.name: one.shape for one in session.get_inputs()}

    def infer(inputs: Arrays, names: Sequence[str]) -> Arrays:
        given = {name: value for name, value in inputs.items() if name in wanted}
        return dict(zip(names, session.run(list(names), given)))

    return OpenedFile(infer, [one.name for one in session.get_outputs()], _past_of(wanted))


def _open_openvino(file: Path, threads: int, outputs: Sequence[str]) -> OpenedFile:
    openvino: Any = import_optional("openvino", "openvino", "running an OpenVINO model")
    # processors with bf16 would otherwise compute in it
    how = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    compiled = openvino.Core().compile_model(str(file), "CPU", how)
    request = compiled.create_infer_request()
    places = {port.get_any_name(): i for i, port in enumerate(compiled.outputs)}
    wanted = {name: port.get_partial_shape() for port in compiled.inputs for name in port.get_names()}
    sizes = {
        name: [None if one.is_dynamic else one.get_length() for one in shape]
        for name, shape in wanted.items()
        if _is(PAST, name)
    }

    def infer(inputs: Arrays, names: Sequence[str]) -> Arrays:
        given = {name: value for name, value in inputs.items() if name in wanted}
        found = request.infer(given, share_inputs=True, share_outputs=True)
        return {name: np.array(found[places[name]]) for name in names}

    return OpenedFile(infer, list(places), _past_of(sizes))


def _open_executorch(file: Path, threads: int, outputs: Sequence[str]) -> OpenedFile:
    runtime: Any = import_optional("executorch.runtime", "executorch", "running an ExecuTorch model")
    import torch

    method = runtime.Runtime.get().load_program(str(file)).load_method("forward")

    def infer(inputs: Arrays, names: Sequence[str]) -> Arrays:
        # by position; the number of threads is the runtime's own
        found = method.execute([torch.from_numpy(value) for value in inputs.values()])
        return {name: one.numpy().copy() for name, one in zip(outputs, found) if name in names}

    return OpenedFile(infer, list(outputs))


def _is(kind: str, name: str) -> bool:
    return name.startswith(f"{kind}.")


def _past_of(shapes: Mapping[str, Sequence[Any]]) -> dict[str, tuple[int, int]]:
    """Return the heads and channels of cached keys and values, of the shapes of all inputs."""
    found = {}
    for name, shape in shapes.items():
        if _is(PAST, name):
            if len(shape) != 4 or not all(isinstance(shape[i], int) for i in (1, 3)):
                raise FormatError(f"{name} has the shape {list(shape)}, without fixed heads and channels")
            found[name] = (int(shape[1]), int(shape[3]))
    return found


RUNTIMES: dict[str, Callable[[Path, int, Sequence[str]], OpenedFile]] = {
    "onnx": _open_onnx,
    "openvino": _open_openvino,
    "executorch": _open_executorch,
}
