"""nm: of every m neighbours exactly n are stored, with their places. bits = groups·N·(n + ⌈log2 M⌉)

Neighbours lie along the last axis (`across` 0) or, as in a transposed weight, along the first (`across` 1).
The last group of a row may be short; a group with fewer values than N stores zeros as well, from the left.
Only where the whole group is shorter than N do their places go beyond the row: they are 0, 1, …, N − 1 there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ...core.errors import EspalierError
from .about import About, Facts, turned
from .fields import Array, Packed, pack, width

NEEDS: tuple[str, ...] = ("n", "m", "across")
PARTS = ("values", "places")
PATTERNS = ((2, 4), (1, 2), (1, 4), (4, 8), (2, 8))


def fields(about: About) -> dict[str, tuple[int, int]]:
    n, m, across = about["n"], about["m"], about["across"]
    if not 1 <= n <= m <= 256 or across > 1:
        raise EspalierError(f"{n}:{m} (across {across}) is not a pattern of neighbours")
    rows, columns = _matrix(about.shape, about.n, across)
    stored = rows * -(-columns // m) * n
    return {"values": (stored, about.value_bits), "places": (stored, width(m))}


def options(facts: Facts) -> Iterator[About]:
    """Patterns that the tensor could follow; `fits` says whether it does."""
    for n, m in PATTERNS:
        if facts.nnz * m <= facts.n * n + facts.n:  # short groups may hold a few more
            for across in (0, 1) if len(facts.shape) > 1 else (0,):
                yield facts.about("nm", n=n, m=m, across=across)


def fits(facts: Facts, about: About) -> bool:
    groups = _groups(facts.words, facts.shape, about["m"], about["across"])
    return int(_count(groups != 0).max(initial=0)) <= about["n"]


def encode(facts: Facts, about: About) -> dict[str, Array]:
    n, m = about["n"], about["m"]
    groups = _groups(facts.words, facts.shape, m, about["across"])
    taken = groups != 0
    spare = n - _count(taken)
    if len(spare) and spare.min() < 0:
        raise EspalierError(f"the tensor is not {n}:{m}: a group has {n - spare.min()} values")
    for j in range(m):  # zeros from the left, until every group has its n
        more = ~taken[:, j] & (spare > 0)
        taken[:, j] |= more
        spare -= more
    places = np.flatnonzero(taken)
    return {"values": groups.reshape(-1)[places], "places": pack(places % m, width(m))}


def decode(about: About, values: Array, parts: Mapping[str, Packed]) -> Array:
    n, m, across = about["n"], about["m"], about["across"]
    rows, columns = _matrix(about.shape, about.n, across)
    places = parts["places"][:].reshape(-1, n)
    if (places >= m).any() or not (places[:, 1:] > places[:, :-1]).all():
        raise EspalierError(f"the places in a group of {m} do not rise")
    _check_ends(places, values, rows, (columns - 1) % m + 1)
    places += m * np.arange(len(places))[:, None]
    padded = -(-columns // m) * m
    out = np.zeros(rows * padded, values.dtype)
    out[places.reshape(-1)] = values
    table = out.reshape(rows, padded)[:, :columns]
    return (turned(table) if across else np.ascontiguousarray(table)).reshape(-1)


def _check_ends(places: Array, values: Array, rows: int, room: int) -> None:
    """The last group of a row has room for so many; beyond it stand only the zeros that fill it up."""
    n = places.shape[1]
    last = places.reshape(rows, -1, n)[:, -1]
    beyond = last >= room
    if (beyond & ((values.reshape(rows, -1, n)[:, -1] != 0) | (last != np.arange(n)))).any():
        raise EspalierError(f"a place points beyond its row, whose last group has {room} elements")


def _matrix(shape: tuple[int, ...], n: int, across: int) -> tuple[int, int]:
    along = (shape[0] if across else shape[-1]) if shape else 1
    return n // along if along else 0, along


def _groups(words: Array, shape: tuple[int, ...], m: int, across: int) -> Array:
    """[groups, m], the short ones filled with zeros."""
    rows, columns = _matrix(shape, len(words), across)
    table = turned(words.reshape(columns, rows)) if across else words.reshape(rows, columns)
    if columns % m:
        table = np.pad(table, ((0, 0), (0, -columns % m)))
    return np.ascontiguousarray(table).reshape(-1, m)


def _count(taken: Array) -> Array:
    """[groups]: m is small, so adding columns beats summing along the short axis."""
    total = np.zeros(len(taken), np.int16)
    for j in range(taken.shape[1]):
        total += taken[:, j]
    return total
