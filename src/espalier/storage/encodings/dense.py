"""dense: every value as it is. bits = L·n"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .about import About, Facts
from .fields import Array, Packed

NEEDS: tuple[str, ...] = ()
PARTS = ("values",)


def fields(about: About) -> dict[str, tuple[int, int]]:
    return {"values": (about.n, about.value_bits)}


def options(facts: Facts) -> Iterator[About]:
    yield facts.about("dense")


def encode(facts: Facts, about: About) -> dict[str, Array]:
    return {"values": facts.words}


def decode(about: About, values: Array, parts: Mapping[str, Packed]) -> Array:
    return values.copy()
