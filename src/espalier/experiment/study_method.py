"""Who takes part: a criterion, its options, and within what the lowest are sought; and at which sparsities.

magnitude   magnitude:scope=layer   wanda   wanda:scope=global   taylor:signed=true   movement   ./mine.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .. import criteria
from ..core.errors import EspalierError
from ..core.mask import Mask
from ..pruning.repair import repairs
from ..selection.scopes import SCOPES, chooser
from . import method as strategies

LEARNED = "movement"  # its scores are learned while the weights are
UNITWISE = ("step", "every")  # words of strategies that remove one unit after the other


@dataclass(frozen=True)
class Contender:
    """How weights are chosen. It is named everywhere by what was typed."""

    label: str
    criterion: str
    scope: str
    options: dict[str, Any] = field(default_factory=dict)
    code: str = ""  # a digest, where the criterion is a file

    @property
    def learned(self) -> bool:
        return self.criterion == LEARNED

    @property
    def repairs(self) -> bool:
        """Whether what stays is moved to make up for what goes: SparseGPT, matrix by matrix."""
        return repairs(self.criterion, self.scope)

    @property
    def choose(self) -> Callable[..., Mask]:
        return chooser(self.scope)

    def scores(self, model: Any, sites: Any, batches: Any) -> Any:
        return criteria.load(self.criterion)(model, sites, batches, **self.options)

    def settings(self) -> dict[str, Any]:
        """All that decides its rows, for a study that goes on to be held against."""
        told = {"criterion": self.criterion, "scope": self.scope, "options": self.options}
        told |= {"code": self.code} if self.code else {}
        return told | ({"repaired": True} if self.repairs else {})


def check_trained(label: str, trained: bool) -> None:
    """Scores that are learned need a training to be learned in."""
    if not trained:
        raise EspalierError(f"{label} learns its scores while it trains: give it --epochs 1 or more")


def parse(text: str) -> list[Contender]:
    """A list with commas between; `scope=` is ours, all other options are the criterion's."""
    found = [_one(piece.strip()) for piece in text.split(",") if piece.strip()]
    if not found:
        raise EspalierError("no strategy given. Type for example: --by magnitude,wanda,fisher")
    labels = [one.label for one in found]
    for label in labels:
        if labels.count(label) > 1:
            raise EspalierError(f"{label} is asked for twice")
    return found


def _one(label: str) -> Contender:
    words = label.split(":")
    for word, following in pairwise(words):
        n = word.removeprefix("scope=")
        if n != word and n.isdigit() and following.isdigit():
            plain = label.replace(f":{word}:{following}", "")
            raise EspalierError(
                f"{label}: {n}:{following} has one level only and is not part of the study. Type: "
                f"espalier prune MODEL --task TASK --what weights --by {plain} --scope {n}:{following}"
            )
    scopes = [word.partition("=")[2] for word in words[1:] if word.startswith("scope=")]
    (strategy,) = strategies.parse(":".join(w for w in words if not w.startswith("scope=")))
    criterion = criteria.load(strategy.criterion)
    if "weights" not in criterion.targets:
        raise EspalierError(f"{label} scores {' and '.join(criterion.targets)}, not single weights")
    odd = [word for word in words[1:] if word.partition("=")[0] in UNITWISE or "=" not in word]
    if odd:
        raise EspalierError(
            f"{label}: {odd[0]!r} says nothing of single weights, which go all at once. A strategy here "
            f"is a criterion, then after colons: scope= one of {', '.join(SCOPES)}, or option=value"
        )
    if strategy.criterion == LEARNED and strategy.options:
        raise EspalierError(
            f"{label}: the scores of {LEARNED} are learned here, with the study's own settings. Type "
            f"{LEARNED}, or {LEARNED}:scope=layer"
        )
    if len(scopes) > 1:
        raise EspalierError(f"{label} has two scopes")
    scope = scopes[0] if scopes else criterion.scope
    chooser(scope)
    code = str(strategy.settings().get("code", ""))
    return Contender(label, strategy.criterion, scope, strategy.options, code)


def levels_of(text: str) -> list[float]:
    """`0.5,0.6,0.7` or, from, to and step, `0.5:0.8:0.05`: rising fractions of the weights that go."""
    try:
        if ":" in text:
            first, last, step = (float(piece) for piece in text.split(":"))
            if step <= 0 or last < first:
                raise ValueError
            count = int((last - first) / step + 1e-9)
            found = [first + i * step for i in range(count + 1)]
        else:
            found = [float(piece) for piece in text.split(",") if piece.strip()]
    except ValueError:
        found = []
    found = sorted({round(level, 6) for level in found})
    if not found or not all(0 < level < 1 for level in found):
        raise EspalierError(
            f"levels are fractions of weights that go, between 0 and 1: --levels 0.5,0.6,0.7,0.8, or from, "
            f"to and step, --levels 0.5:0.8:0.05; got {text!r}"
        )
    return found
