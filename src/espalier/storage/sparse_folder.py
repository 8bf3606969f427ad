"""Model folders whose weights are a sparse file, and what transformers needs to load one.

The file is not called `model.safetensors`: without espalier transformers then finds no weights and raises,
instead of taking encoded tensors for missing ones and initialising them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..architectures.site import input_axis
from ..core.errors import EspalierError, FormatError, UnsupportedError
from ..core.types import PreTrainedModel
from ..io.files import edit_config
from ..io.paths import CONFIG, SPARSE_WEIGHTS
from ..io.safetensors_file import SafetensorsFile
from ..pruning import skeleton
from .encodings import ENCODINGS
from .sparse_file import MARK, SCALES, Stored, StoredTensor, encode_files, read_table, restore

PARTS = (*dict.fromkeys(p for e in ENCODINGS.values() for p in e.parts), SCALES)


def write_sparse(
    model: PreTrainedModel, files: Sequence[Path], place: Path, *, int8: bool
) -> list[StoredTensor]:
    """Encode weight files into a folder that has a config. Of the model only the shapes are read."""
    with edit_config(place / CONFIG) as config:
        record = config.get("quantization_config")
        if record is not None and not skeleton.is_ours(record):
            raise UnsupportedError(
                f"the model is already quantized ({record}), and transformers allows one quantization per "
                "model. Encode its weight file instead"
            )
        axes = _output_axes(model) if int8 else None
        stored = encode_files(
            files, place / SPARSE_WEIGHTS, int8=int8, axes=axes, leave=_converted_by_transformers(model)
        )
        config["quantization_config"] = {**(record or skeleton.empty_record()), "sparse": True}
    return stored


def _output_axes(model: PreTrainedModel) -> dict[str, int]:
    """Return the output axis of every matrix: 0, or 1 for GPT-2's Conv1D, whose outputs are columns."""
    return {
        f"{path}.weight": 1 - input_axis(module)
        for path, module in model.named_modules()
        if getattr(getattr(module, "weight", None), "ndim", 0) == 2
    }


def _converted_by_transformers(model: PreTrainedModel) -> Callable[[str], bool]:
    """Return a test for tensors that transformers merges or splits while loading: it converts only once."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    found = [c for c in get_model_conversion_mapping(model) if isinstance(c, WeightConverter)]
    return lambda name: any(c.compiled_sources.search(name) for c in found)


class Restorer:
    """Gives transformers the decoded tensors of sparse files, one by one."""

    def __init__(self, files: Iterable[str | Path]):
        self.table: dict[str, Stored] = {}
        for file in files:
            self.table.update(read_table(SafetensorsFile(file)))
        self.restored = 0

    def conversions(self) -> Sequence[Any]:
        """Return the one conversion that collects `w::values`, `w::mask`, … into w."""
        from transformers.core_model_loading import ConversionOps, WeightConverter

        restorer = self

        class Decode(ConversionOps):
            """A converter must have an operation; the one below decodes, because it knows names."""

            def convert(self, input_dict: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
                return input_dict

        class Restored(WeightConverter):
            final_dtype: Any = None

            def convert(self, layer_name: str, *_: Any, **__: Any) -> dict[str, Any]:
                given = self.materialize_tensors()
                name = next(iter(self.layer_targets[layer_name])).rpartition(MARK)[0]
                parts = {pattern.removeprefix(MARK): found[0] for pattern, found in given.items()}
                if name not in restorer.table:
                    raise FormatError(f"{name} is encoded, but the file does not describe how")
                restorer.restored += 1
                return {layer_name: restore(name, restorer.table[name], parts).to(self.final_dtype)}

        self.converter = Restored
        return [Restored([MARK + part for part in PARTS], "", [Decode()], force_cpu=True)]

    def is_part(self, converter: Any, dtype: Any) -> bool:
        """Return whether a tensor is a part of an encoded one, which keeps its dtype until it is restored."""
        if not isinstance(converter, self.converter):
            return False
        converter.final_dtype = dtype
        return True

    def finish(self, model: Any) -> None:
        """Remove the conversion, so that saving the model does not use encoded names."""
        if self.table and not self.restored:
            raise EspalierError(
                "this version of transformers did not request the encoded weights; decode the folder first"
            )
        converters = model._weight_conversions
        model._weight_conversions = [c for c in converters if not isinstance(c, self.converter)]
