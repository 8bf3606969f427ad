"""What an encoding defines, and dense, which stores every value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

from .fields import Array, Packed
from .source import Source, Spec

Fields = dict[str, tuple[int, int]]


class Encoding(ABC):
    """One way to store a tensor: `needs` are the counts that determine its size, `parts` what it writes."""

    name: str
    needs: tuple[str, ...] = ("nnz",)
    parts: tuple[str, ...]

    @abstractmethod
    def fields(self, spec: Spec) -> Fields:
        """Return each part as (count, width): the formula of its size is its layout."""

    def options(self, source: Source) -> Iterator[Spec]:
        """Yield the descriptions of which the smallest that fits is taken."""
        yield source.spec(self.name, nnz=source.nnz)

    def fits(self, source: Source, spec: Spec) -> bool:
        """Return whether the tensor can be stored as described."""
        return True

    @abstractmethod
    def encode(self, source: Source, spec: Spec) -> dict[str, Array]:
        """Return the parts."""

    @abstractmethod
    def decode(self, spec: Spec, values: Array, parts: Mapping[str, Packed]) -> Array:
        """Return the words, or raise FormatError if the parts do not fit together."""


class Dense(Encoding):
    """bits = L·n"""

    name, needs, parts = "dense", (), ("values",)

    def fields(self, spec: Spec) -> Fields:
        return {"values": (spec.n, spec.value_bits)}

    def options(self, source: Source) -> Iterator[Spec]:
        yield source.spec(self.name)

    def encode(self, source: Source, spec: Spec) -> dict[str, Array]:
        return {"values": source.words}

    def decode(self, spec: Spec, values: Array, parts: Mapping[str, Packed]) -> Array:
        return values.copy()
