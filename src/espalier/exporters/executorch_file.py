"""ExecuTorch files, for phones and small devices: traced by transformers' own exporter, run by XNNPACK."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..architectures.table import position_limit
from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel
from ..io.plugin import import_optional
from .equality import check_equality
from .onnx_file import describe_cause
from .past import Layers
from .runtime import open_file
from .sample import TRACED, sample
from .silence import silenced

EXTRA, PURPOSE = "executorch", "exporting to ExecuTorch"
LARGEST_BATCH, LONGEST = 8, 512  # memory is planned for these


def write_executorch(
    model: PreTrainedModel, names: list[str], file: Path, layers: Layers | None = None
) -> dict[str, Any]:
    """Write a model whose batch and length vary up to a limit, and return how its outputs compare."""
    import_optional("executorch", EXTRA, PURPOSE)
    from torch.export import Dim

    inputs: Any = sample(model, names, *TRACED)
    longest = min(position_limit(model) or LONGEST, LONGEST)
    sizes = {0: Dim.DYNAMIC(min=1, max=LARGEST_BATCH), 1: Dim.DYNAMIC(min=1, max=longest)}
    with silenced():
        from transformers.exporters import ExecutorchConfig, ExecutorchExporter

        how = ExecutorchConfig(dynamic_shapes=dict.fromkeys(inputs, sizes))
        try:
            file.write_bytes(ExecutorchExporter().export(model, inputs, how).buffer)
        except Exception as error:  # tracing and lowering each have errors of their own
            cause = describe_cause(error)
            raise UnsupportedError(f"{type(model).__name__} cannot become ExecuTorch: {cause}") from error
    with torch.no_grad():
        output = model(**inputs)
    outputs = [name for name, value in output.items() if isinstance(value, torch.Tensor)]
    run = open_file(file, "executorch", torch.get_num_threads(), outputs)
    found = check_equality(model, run, names, "ExecuTorch")
    limits = {"largest_batch": LARGEST_BATCH, "longest": longest}
    return {**found, "fused": {}, "refused": "", "outputs": outputs, **limits}
