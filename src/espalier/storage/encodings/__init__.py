"""Sparse encodings: a tensor with many zeros in fewer bytes, decoded bit for bit.

>>> encoded = encode(weight)                # the smallest of them
>>> encoded = encode(weight, "bitmap")      # or this one
>>> decode(encoded)                         # the same tensor, −0.0 and NaN included
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, from_numpy

from ...core.errors import FormatError, InvalidValueError, UnknownNameError, UnsupportedError
from . import fields
from .bitmap import Bitmap
from .encoding import Dense, Encoding, Fields
from .fields import Packed
from .gaps import Rice, RunLength
from .indices import CompressedColumns, CompressedRows, Coordinates
from .n_of_m import NOfM
from .source import Source, Spec, read_spec, tensor_of, words_of

# Among equal sizes the first wins: the simplest to read comes first.
_ALL = (Dense(), NOfM(), Bitmap(), Rice(), RunLength(), CompressedRows(), CompressedColumns(), Coordinates())
ENCODINGS: dict[str, Encoding] = {encoding.name: encoding for encoding in _ALL}
__all__ = ["ENCODINGS", "Encoded", "Spec", "best_spec", "bits", "bound", "decode", "encode", "size"]


@dataclass(frozen=True)
class Encoded:
    """An encoded tensor: `parts["values"]` in its own dtype, the other parts packed in bytes."""

    spec: Spec
    parts: dict[str, Tensor]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.nbytes for part in self.parts.values())


def parts(spec: Spec) -> Fields:
    """Return the parts of an encoded tensor: how many fields each has, of how many bits."""
    return ENCODINGS[spec.encoding].fields(spec)


def bits(spec: Spec) -> int:
    """Return the bits that the encoding takes, before each part is padded to a byte."""
    return sum(count * width for count, width in parts(spec).values())


def size(spec: Spec) -> int:
    """Return the bytes that `encode` will write."""
    return sum(fields.size(count, width) for count, width in parts(spec).values())


def bound(tensor: Tensor) -> float:
    """Return the information bound in bytes: the values and the entropy of the mask."""
    return Source(tensor).bound


def best_spec(tensor: Tensor | Source, among: Iterable[str] = tuple(ENCODINGS), minimum: int = 0) -> Spec:
    """Return the encoding, with its counts, that takes the fewest bytes, but at least `minimum`.

    Nothing is encoded to find out. Equal sizes: the first in ENCODINGS.
    """
    source = tensor if isinstance(tensor, Source) else Source(tensor)
    names = set(among)
    for name in names - set(ENCODINGS):
        raise UnknownNameError("encoding", name, ENCODINGS, "encoding")
    found = [spec for name in ENCODINGS if name in names for spec in ENCODINGS[name].options(source)]
    for spec in sorted(found, key=size):
        if size(spec) >= minimum and ENCODINGS[spec.encoding].fits(source, spec):
            return spec
    raise UnsupportedError(f"none of {', '.join(sorted(names))} can hold this tensor; try bitmap")


def encode(tensor: Tensor, encoding: str | Spec | None = None) -> Encoded:
    """Encode a tensor: by the smallest encoding, by the one named, or exactly as a `Spec` describes."""
    source = Source(tensor)
    among = (encoding,) if isinstance(encoding, str) else ENCODINGS
    spec = encoding if isinstance(encoding, Spec) else best_spec(source, among)
    if (spec.dtype, spec.shape) != (source.dtype, source.shape):
        expected, given = f"{spec.dtype} {list(spec.shape)}", f"{source.dtype} {list(source.shape)}"
        raise InvalidValueError(f"`encoding` describes a tensor {expected}, not {given}", "encoding")
    made = ENCODINGS[spec.encoding].encode(source, spec)
    _check_parts(spec, {name: part.nbytes for name, part in made.items()})
    values = tensor_of(made["values"], spec.dtype, made["values"].shape)
    return Encoded(spec, {name: from_numpy(part) for name, part in made.items()} | {"values": values})


def decode(encoded: Encoded) -> Tensor:
    """Return the tensor, bit for bit. Parts that do not fit together are refused before allocating memory."""
    spec, expected = encoded.spec, parts(encoded.spec)
    _check_parts(spec, {name: part.nbytes for name, part in encoded.parts.items()})
    values = words_of(encoded.parts["values"])
    packed = {
        name: Packed(encoded.parts[name].numpy(), *expected[name]) for name in expected if name != "values"
    }
    for name, part in packed.items():
        if part.spare:
            raise FormatError(f"its {name} has bits set beyond the last element")
    words = ENCODINGS[spec.encoding].decode(spec, values, packed) if spec.n else np.empty(0, values.dtype)
    return tensor_of(words, spec.dtype, spec.shape)


def read(raw: Any) -> Spec:
    """Return the description of an encoded tensor from a file."""
    return read_spec(raw, {name: encoding.needs for name, encoding in ENCODINGS.items()})


def _check_parts(spec: Spec, given: dict[str, int]) -> None:
    """Raise unless the parts have the bytes that the description requires."""
    expected = {name: fields.size(count, width) for name, (count, width) in parts(spec).items()}
    if given != expected:
        raise FormatError(f"{spec.encoding} should have parts of so many bytes: {expected}, and has {given}")
