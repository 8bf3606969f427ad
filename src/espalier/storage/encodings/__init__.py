"""Sparse encodings: a tensor with many zeros in fewer bytes, and back bit for bit.

>>> encoded = encode(weight)                # the smallest of them
>>> encoded = encode(weight, "bitmap")      # or this one
>>> decode(encoded)                         # the same tensor, −0.0 and NaN included

An encoding is a file here with six things: `NEEDS` (the counts that say how large it is), `PARTS`, `fields`
(each part as count × width, so the formula of its size *is* its layout), `options`, `encode` and `decode`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, from_numpy

from ...core.errors import EspalierError, suggest
from . import bitmap, coordinates, dense, n_of_m, rice, run_length
from .about import About, Facts, read_about, tensor_of, words_of
from .compressed_rows import Columns, Rows
from .fields import Packed
from .fields import size as field_bytes

# In this order among equals: what is simplest to read comes first.
ENCODINGS: dict[str, Any] = {
    "dense": dense,
    "nm": n_of_m,
    "bitmap": bitmap,
    "rice": rice,
    "run_length": run_length,
    "csr": Rows,
    "csc": Columns,
    "coo": coordinates,
}
__all__ = [
    "ENCODINGS",
    "About",
    "Encoded",
    "best_encoding",
    "bits",
    "bound",
    "decode",
    "describe",
    "encode",
    "size",
]


@dataclass(frozen=True)
class Encoded:
    """What an encoding made: `parts["values"]` in the tensor's own dtype, the others packed in bytes."""

    about: About
    parts: dict[str, Tensor]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(part.numel() * part.element_size() for part in self.parts.values())


def parts(about: About) -> dict[str, tuple[int, int]]:
    """The parts of an encoded tensor: how many fields each has, of how many bits."""
    found: dict[str, tuple[int, int]] = _the(about.encoding).fields(about)
    return found


def bits(about: About) -> int:
    """The formula: how many bits the encoding takes, before each part is filled up to a byte."""
    return sum(count * wide for count, wide in parts(about).values())


def size(about: About) -> int:
    """The bytes that `encode` will write."""
    return sum(field_bytes(count, wide) for count, wide in parts(about).values())


def bound(tensor: Tensor) -> float:
    """The information bound in bytes: the values, and the entropy of where they are."""
    return Facts(tensor).bound


def best_encoding(tensor: Tensor, among: Iterable[str] = tuple(ENCODINGS)) -> About:
    """The encoding, with its parameters, that takes the fewest bytes. Nothing is encoded to find out."""
    return best_for(Facts(tensor), among)


def describe(tensor: Tensor, encoding: str) -> About:
    """One encoding with the parameters that make it smallest."""
    return best_for(Facts(tensor), (encoding,))


def best_for(facts: Facts, among: Iterable[str], least: int = 0) -> About:
    """The smallest that takes at least so many bytes; see `sparse_files.GROWTH`."""
    order = [name for name in ENCODINGS if name in {_known(name) for name in among}]
    found = [about for name in order for about in ENCODINGS[name].options(facts)]
    for about in sorted(found, key=size):  # a stable sort: the order above decides among equals
        if size(about) >= least and (about.encoding != "nm" or n_of_m.fits(facts, about)):
            return about
    raise EspalierError(f"none of {', '.join(order)} can hold this tensor; try bitmap")


def encode(tensor: Tensor, encoding: str | About | None = None) -> Encoded:
    """Encode a tensor: by the smallest encoding, by the one named, or exactly as an `About` says."""
    facts = Facts(tensor)
    if isinstance(encoding, About):
        about = encoding
    else:
        about = best_for(facts, ENCODINGS if encoding is None else (encoding,))
    return encode_as(facts, about)


def encode_as(facts: Facts, about: About) -> Encoded:
    if (about.dtype, about.shape) != (facts.dtype, facts.shape):
        raise EspalierError(
            f"the description is of {about.dtype} {list(about.shape)}, not {facts.dtype} {list(facts.shape)}"
        )
    made = _the(about.encoding).encode(facts, about)
    check_parts(about, {name: part.nbytes for name, part in made.items()})
    values = About("dense", about.dtype, made["values"].shape)
    bytes_ = {name: from_numpy(part) for name, part in made.items()}
    return Encoded(about, bytes_ | {"values": tensor_of(made["values"], values)})


def decode(encoded: Encoded) -> Tensor:
    """The tensor, bit for bit. Parts that do not fit together are refused before memory is taken."""
    about = encoded.about
    encoding = _the(about.encoding)
    expected = parts(about)
    check_parts(about, {n: (p.numel() * p.element_size()) for n, p in encoded.parts.items()})
    values = words_of(encoded.parts["values"])
    packed = {
        name: Packed(encoded.parts[name].numpy(), *expected[name]) for name in expected if name != "values"
    }
    for name, part in packed.items():
        if part.spare:
            raise EspalierError(f"its {name} has bits set beyond the last element")
    if not about.n:
        words = np.empty(0, values.dtype)
    else:
        words = encoding.decode(about, values, packed)
    return tensor_of(words, about)


def check_parts(about: About, given: dict[str, int]) -> None:
    """Whether the parts are those that the description asks for, to the byte."""
    expected = parts(about)
    if set(given) != set(expected):
        raise EspalierError(
            f"{about.encoding} has the parts {', '.join(expected)}, not {', '.join(sorted(given))}"
        )
    for name, (count, wide) in expected.items():
        if given[name] != field_bytes(count, wide):
            raise EspalierError(
                f"its {name} should have {field_bytes(count, wide)} bytes and have {given[name]}"
            )


def read(raw: Any) -> About:
    """The description of an encoded tensor from a file."""
    return read_about(raw, {name: encoding.NEEDS for name, encoding in ENCODINGS.items()})


def _known(name: str) -> str:
    if name not in ENCODINGS:
        raise EspalierError(
            f"no encoding {name!r}{suggest(name, ENCODINGS)} There are: {', '.join(ENCODINGS)}"
        )
    return name


def _the(name: str) -> Any:
    return ENCODINGS[_known(name)]
