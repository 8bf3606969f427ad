"""What tokens.json of a run holds: texts, and which of their tokens are left after which layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from ..io.files import read_json
from .record import Checked, Fraction

TITLE = "Tokens of "


class LayerRecord(Checked):
    kept: list[bool]
    scores: list[float | None]


class TextRecord(Checked):
    tokens: list[str]
    kept: list[Fraction]
    layers: list[LayerRecord] = Field(default_factory=list)
    model: str = ""  # whose layers these are

    @model_validator(mode="after")
    def same_length(self) -> TextRecord:
        """Raise unless every list has a value for each token."""
        lists: list[list[Any]] = [self.kept, *(x for one in self.layers for x in (one.kept, one.scores))]
        if any(len(one) != len(self.tokens) for one in lists):
            raise ValueError(f"there are {len(self.tokens)} tokens, and not as many values for them")
        return self


class TokensRecord(Checked):
    """tokens.json: texts, and the share of the layers that each of their tokens is kept in."""

    title: str = ""
    texts: list[TextRecord]


def title_of(texts: list[dict[str, Any]]) -> str:
    """Return what the texts are shown under: the models that read them."""
    return TITLE + ", ".join(dict.fromkeys(one["model"] for one in texts if one["model"]))


def read_tokens(path: Path) -> dict[str, Any] | None:
    """Return tokens.json of a run, or None if it has none."""
    return TokensRecord.check(read_json(path), path).model_dump() if path.exists() else None
