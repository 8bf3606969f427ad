"""coo: the index of each value in the flat tensor. bits = (1−p)·L·(n + ⌈log2 L⌉)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .about import CHUNK, About, Facts, values_and_places
from .fields import Array, Packed, pack, width
from .filling import fill

NEEDS: tuple[str, ...] = ("nnz",)
PARTS = ("values", "places")


def fields(about: About) -> dict[str, tuple[int, int]]:
    nnz = about["nnz"]
    return {"values": (nnz, about.value_bits), "places": (nnz, width(about.n))}


def options(facts: Facts) -> Iterator[About]:
    yield facts.about("coo", nnz=facts.nnz)


def encode(facts: Facts, about: About) -> dict[str, Array]:
    values, places = values_and_places(facts.words, facts.nnz)
    return {"values": values, "places": pack(places, width(facts.n))}


def decode(about: About, values: Array, parts: Mapping[str, Packed]) -> Array:
    places = parts["places"]
    slices = (places[i : i + CHUNK] for i in range(0, len(places), CHUNK))
    return fill(about.n, values, slices)
