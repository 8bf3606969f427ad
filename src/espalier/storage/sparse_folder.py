"""Model folders whose weights are a sparse file, and what transformers needs to load one.

The file is not called `model.safetensors`: transformers without espalier then finds no weights and says so,
instead of taking encoded tensors for missing ones and making them up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ..architectures.site import input_axis
from ..core.errors import EspalierError
from ..core.plan import Plan
from ..io.atomic import MODELLING
from ..io.safetensors_file import SafeFile
from ..pruning import skeleton
from .encodings import ENCODINGS
from .sparse_file import MARK, SCALES, Count, Stored, decode_file, encode_files, read_table, restore

FILE = skeleton.SPARSE
PARTS = (*dict.fromkeys(p for e in ENCODINGS.values() for p in e.PARTS), SCALES)


def make_sparse(model: Any, place: Path, *, int8: bool) -> None:
    """Turn the plain weights that were just written to a folder into one sparse file."""
    plain = sorted(place.glob("*.safetensors"))
    write_sparse(model, plain, place, int8=int8)
    for file in (*plain, *place.glob("*.safetensors.index.json")):
        file.unlink()


def write_sparse(model: Any, plain: Sequence[Path], place: Path, *, int8: bool) -> list[Count]:
    """Encode a model's files into a folder that has its config. Of the model only its shape is looked at."""
    path = place / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    record = config.get("quantization_config")
    if record is not None and not skeleton.is_ours(record):
        method = record.get("quant_method") if isinstance(record, dict) else None
        raise EspalierError(
            f"the model is quantised already ({method or 'as its config says'}), and transformers takes one "
            "such thing. Encode its file by itself: espalier encode model.safetensors -o FILE"
        )
    axes = _output_axes(model) if int8 else None
    counts = encode_files(plain, place / FILE, int8=int8, axes=axes, leave=_converted(model))
    nothing = {
        "quant_method": skeleton.METHOD,
        "version": skeleton.VERSION,
        "plan": Plan({}, {}).to_dict(),
        "skeleton": {"shapes": {}, "attributes": {}, "grafts": {}},
    }
    config["quantization_config"] = {**(record or nothing), "sparse": True}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return counts


def write_plain(sparse: Path, place: Path) -> list[Count]:
    """Decode a sparse file into a folder that has its config; if it was never cut, it is a usual one then."""
    counts = decode_file(sparse, place / "model.safetensors")
    path = place / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    record = config["quantization_config"]
    record.pop("sparse", None)
    if not record["skeleton"]["shapes"]:
        del config["quantization_config"]
        config.pop("auto_map", None)
        (place / MODELLING).unlink(missing_ok=True)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return counts


def _output_axes(model: Any) -> dict[str, int]:
    """Weights whose outputs are not their rows: those of GPT-2's Conv1D are its columns."""
    return {
        f"{path}.weight": 1 - input_axis(module)
        for path, module in model.named_modules()
        if getattr(getattr(module, "weight", None), "ndim", 0) == 2
    }


def _converted(model: Any) -> Callable[[str], bool]:
    """Tensors that transformers itself merges or splits while loading: it takes one conversion, not two."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    found = [c for c in get_model_conversion_mapping(model) if isinstance(c, WeightConverter)]
    return lambda name: any(c.compiled_sources.search(name) for c in found)


class Restorer:
    """Hands transformers the decoded tensors of a sparse file, one by one."""

    def __init__(self, files: Iterable[str | Path]):
        self.table: dict[str, Stored] = {}
        for file in files:
            self.table.update(read_table(SafeFile(file)))
        self.restored = 0

    def conversions(self) -> Sequence[Any]:
        """The one conversion that collects `w::values`, `w::mask`, … into w."""
        from transformers.core_model_loading import ConversionOps, WeightConverter

        restorer = self

        class Decode(ConversionOps):
            """A converter must name an operation; the one below decodes by itself, for it knows names."""

            def convert(self, input_dict: dict[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
                return input_dict

        class Restored(WeightConverter):
            wanted: Any = None

            def convert(self, layer_name: str, *_: Any, **__: Any) -> dict[str, Any]:
                given = self.materialize_tensors()
                name = next(iter(self.layer_targets[layer_name])).rpartition(MARK)[0]
                pieces = {pattern.removeprefix(MARK): found[0] for pattern, found in given.items()}
                return {layer_name: restorer.restore(name, pieces).to(self.wanted)}

        self.kind = Restored
        return [Restored([MARK + part for part in PARTS], "", [Decode()], force_cpu=True)]

    def restore(self, name: str, pieces: dict[str, Any]) -> Any:
        stored = self.table.get(name)
        if stored is None:
            raise EspalierError(f"{name} is encoded, and nothing says how")
        self.restored += 1
        return restore(name, stored, pieces)

    def is_part(self, converter: Any, dtype: Any) -> bool:
        """Whether a tensor is a piece of an encoded one, which keeps its own dtype until it is whole."""
        if not isinstance(converter, self.kind):
            return False
        converter.wanted = dtype
        return True

    def finish(self, model: Any) -> None:
        """The model is an ordinary one now: saving it again must not look for encoded names."""
        if self.table and not self.restored:
            raise EspalierError(
                "this version of transformers did not ask for the encoded weights. "
                f"Type: espalier decode {FILE} -o model.safetensors"
            )
        model._weight_conversions = [c for c in model._weight_conversions if not isinstance(c, self.kind)]
