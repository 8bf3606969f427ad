"""Running text in a file, read as a stream: a file of any size takes the memory of one line."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, overload

from ..core.errors import FormatError
from ..io.files import open_text, reading

LONGEST = 2**17  # characters; a longer line is read in pieces of this length


@dataclass(frozen=True)
class Lines(Sequence[str]):
    """The lines of a text file from `start` to `stop`, read anew each time they are iterated."""

    path: Path
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[str]:
        number = self.start
        for line in islice(read_lines(self.path), self.start, self.stop):
            number += 1
            yield line
        if number < self.stop:
            raise FormatError(f"{self.path} had {self.stop} lines, now {number}: it was changed", self.path)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Lines: ...
    def __getitem__(self, index: Any) -> str | Lines:
        places = range(self.start, self.stop)[index]
        if isinstance(places, int):
            return next(iter(Lines(self.path, places, places + 1)))
        return Lines(self.path, places.start, places.stop)  # running text has no steps


def count_lines(path: Path) -> Lines:
    """Return all lines of a file; it is read once to count them."""
    return Lines(path, 0, sum(1 for _ in read_lines(path)))


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, gzipped or not, without their ends."""
    with reading(path, "a text file in UTF-8", EOFError, zlib.error), open_text(path) as file:
        while line := file.readline(LONGEST):
            yield from line.splitlines()
