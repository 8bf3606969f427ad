"""A schedule: how many tokens each layer passes on, or how much attention a token must receive to be kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..core.errors import FormatError, InvalidValueError, UnknownNameError

VERSION = 2  # 2: with forecasts
TOP, THRESHOLD, MERGE, FORECAST = "top", "threshold", "merge", "forecast"
WAYS = {
    TOP: "the fraction of a text's tokens that each layer passes on: those that receive most attention",
    THRESHOLD: "the attention that a token must receive in each layer to be passed on (LTP)",
    MERGE: "the fraction of a text's tokens that each layer passes on: the most similar are merged (ToMe)",
    FORECAST: "the fraction of a text's tokens that each layer passes on: those that will be looked at above",
}
MOST_LAYERS = 10_000
MOST_NUMBERS = 1 << 22  # of all forecasts
MOST = 1e30  # of each number, far below what float32 holds


@dataclass(frozen=True)
class TokenSchedule:
    """What each layer does to its tokens.

    `values` has an entry for each layer. Of "threshold" it is the least attention received, else the fraction
    of the tokens of the text, counted without padding, that is left after the layer. At least `least` tokens
    are kept, but of a fraction of 0 the first one alone, which always stays. `diagonal=False` leaves out the
    attention that a token gives to itself, as PoWER-BERT does. `forecasts` are for each layer the factors of
    a token's state and a constant, none where the layer chooses no token (see `forecast_tokens`).
    """

    way: str
    values: tuple[float, ...]
    least: int = 1
    diagonal: bool = True
    forecasts: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise UnknownNameError("way to choose tokens", self.way, WAYS, "way")
        object.__setattr__(self, "values", tuple(float(value) for value in self.values))
        if not self.values or not all(0 <= value <= 1 for value in self.values):
            raise InvalidValueError(
                f"`values` are numbers from 0 to 1, one for each layer; got {self.values}",
                "values",
            )
        if self.way != THRESHOLD and any(b > a for a, b in zip(self.values, self.values[1:])):
            raise InvalidValueError(
                f"`values` are fractions of the text's tokens and cannot rise from layer to layer: what was "
                f"removed is gone; got {self.values}",
                "values",
            )
        if type(self.least) is not int or self.least < 1:
            raise InvalidValueError(f"`least` is a number of tokens from 1; got {self.least!r}", "least")
        self._check_forecasts()

    def _check_forecasts(self) -> None:
        try:
            lines = tuple(tuple(float(number) for number in line) for line in self.forecasts)
        except (OverflowError, TypeError, ValueError):
            raise InvalidValueError("`forecasts` are numbers", "forecasts") from None
        object.__setattr__(self, "forecasts", lines)
        if self.forecasts and (self.way != FORECAST or len(self.forecasts) != len(self.values)):
            raise InvalidValueError(
                f"`forecasts` are of the way forecast, one for each of {len(self.values)} layers; got "
                f"{len(self.forecasts)} of the way {self.way}",
                "forecasts",
            )
        if not all(abs(number) <= MOST for each in self.forecasts for number in each):
            raise InvalidValueError(f"`forecasts` are numbers up to {MOST:g}", "forecasts")

    def forecasting(self, forecasts: Sequence[Sequence[float]]) -> TokenSchedule:
        """Return the schedule of the same fractions by forecasts, of which only those that are used stay."""
        if self.way == THRESHOLD:
            raise InvalidValueError(
                "a forecast keeps fractions of the tokens, and thresholds are none", "schedule"
            )
        if len(forecasts) != len(self.values):
            raise InvalidValueError(
                f"the model has {len(forecasts)} layers, the token schedule {len(self.values)} `values`",
                "values",
            )
        plain = replace(self, way=FORECAST, diagonal=True, forecasts=())
        used = [tuple(each) if plain.needs_scores(i) else () for i, each in enumerate(forecasts)]
        return replace(plain, forecasts=tuple(used))

    def count(self, layer: int, tokens: int) -> int:
        """Return how many tokens of a text of so many are left after a layer; not by threshold."""
        if self._is_first_only(layer):
            return min(tokens, 1)
        return min(tokens, max(self.least, math.ceil(self.values[layer] * tokens - 1e-9)))

    def acts(self, layer: int) -> bool:
        """Return whether the layer may remove a token."""
        if self.way == THRESHOLD:
            return self.values[layer] > 0
        return self.values[layer] < (self.values[layer - 1] if layer else 1.0)

    def needs_scores(self, layer: int) -> bool:
        """Return whether the layer must know which tokens are looked at: not if only the first one stays."""
        return self.way == MERGE or (self.acts(layer) and not self._is_first_only(layer))

    def _is_first_only(self, layer: int) -> bool:
        return self.way in (TOP, FORECAST) and self.values[layer] == 0

    def needs_maps(self, layer: int) -> bool:
        """Return whether the layer must compute its attention maps."""
        return self.way != FORECAST and self.needs_scores(layer)

    @property
    def removed(self) -> float:
        """The fraction of tokens removed, averaged over layers; nan by threshold."""
        return math.nan if self.way == THRESHOLD else 1 - sum(self.values) / len(self.values)

    def removing(self, remove: float) -> TokenSchedule:
        """Return the schedule of the same form that removes a fraction `remove`, averaged over layers.

        Every fraction is raised to the same power, so that layers that remove nothing still do not.
        """
        if self.way == THRESHOLD:
            raise InvalidValueError(
                "how much a threshold removes depends on the text: give `values`", "remove"
            )
        ones, zeros = (sum(value == v for value in self.values) / len(self.values) for v in (1.0, 0.0))
        if not zeros <= remove < 1 or remove > 1 - ones:
            raise InvalidValueError(
                f"a schedule of the form {self.values} removes from {zeros:.3g} to {1 - ones:.3g} of the "
                f"tokens; got `remove` {remove}",
                "remove",
            )
        low, high = -40.0, 40.0  # of the logarithm of the power
        for _ in range(80):
            middle = (low + high) / 2
            values = [value ** math.exp(middle) for value in self.values]
            low, high = (middle, high) if 1 - sum(values) / len(values) < remove else (low, middle)
        return replace(self, values=tuple(round(value, 6) for value in values))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON; without forecasts as the first version wrote it."""
        out = {"version": VERSION if self.forecasts else 1, **asdict(self), "values": list(self.values)}
        forecasts = [list(each) for each in out.pop("forecasts")]
        return out | ({"forecasts": forecasts} if forecasts else {})

    def about(self) -> dict[str, Any]:
        """Return what a person or a table is told: all but the numbers of forecasts."""
        return {name: value for name, value in self.to_dict().items() if name != "forecasts"}

    @classmethod
    def from_dict(cls, raw: Any) -> TokenSchedule:
        """Read what `to_dict` wrote."""
        known = {"version": 0, "way": 0, "values": 0, "least": 0, "diagonal": 0, "forecasts": 0}
        if not isinstance(raw, Mapping) or not {"version", "way", "values"} <= set(raw) <= set(known):
            raise FormatError(f"not a token schedule: it has the keys {', '.join(known)}")
        if type(raw["version"]) is not int or not 1 <= raw["version"] <= VERSION:
            raise FormatError(
                f"the token schedule has version {raw['version']}; this espalier reads up to {VERSION}"
            )
        values, forecasts = raw["values"], raw.get("forecasts", [])
        plain = _are_numbers(values) and isinstance(forecasts, list) and all(map(_are_numbers, forecasts))
        if not plain or len(values) > MOST_LAYERS or type(raw.get("diagonal", True)) is not bool:
            raise FormatError("the token schedule is damaged: see its values, diagonal and forecasts")
        if sum(map(len, forecasts)) > MOST_NUMBERS:
            raise FormatError(f"the token schedule has more than {MOST_NUMBERS:,} numbers in its forecasts")
        more = dict(least=raw.get("least", 1), diagonal=raw.get("diagonal", True))
        try:
            return cls(str(raw["way"]), tuple(values), **more, forecasts=tuple(map(tuple, forecasts)))
        except InvalidValueError as error:
            raise FormatError(f"the token schedule is damaged: {error}") from None


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) in (int, float) for value in values)


def even_schedule(
    layers: int,
    remove: float,
    way: str = TOP,
    *,
    stages: int | None = None,
    after: int = 0,
    last: bool = False,
    least: int = 1,
) -> TokenSchedule:
    """Return the schedule that removes the same share in every stage and `remove` on average over layers.

    A stage is a layer that removes tokens; the others pass on what they read, and compute no attention maps.
    By default every layer is one. Fewer `stages` are spread evenly, and the first `after` layers are none.
    `last`: the last layer passes on the first token only, which is exact where nothing else is read; the
    others then remove less.
    """
    if way == THRESHOLD:
        raise InvalidValueError("how much a threshold removes depends on the text: give `values`", "way")
    check_remove(remove)
    inner, wanted = layers - last - after, layers * (1 - remove) - after
    if after and (type(after) is not int or after < 0 or inner < 1 or wanted <= 0):
        raise InvalidValueError(
            f"`after` is a number of layers that read all tokens; the {max(0, layers - after)} others must "
            f"remove {remove:g} of all; got {after!r}",
            "after",
        )
    count = max(1, inner) if stages is None else stages
    if type(count) is not int or not 1 <= count <= max(1, inner):
        raise InvalidValueError(f"`stages` is a number of layers from 1 to {inner}; got {stages!r}", "stages")
    passed = [sum(i >= j * inner // count for j in range(count)) for i in range(inner)]  # stages so far
    low, high = 0.0, 1.0
    for _ in range(60):  # the share kept by each stage; what is left rises with it
        share = (low + high) / 2
        left = sum(share**number for number in passed)
        low, high = (share, high) if left < wanted else (low, share)
    values = [1.0] * after + [high**number for number in passed] + [0.0] * last
    return TokenSchedule(way, tuple(round(value, 6) for value in values), least)


def check_remove(remove: float) -> None:
    """Raise unless this is a fraction of tokens that can be removed."""
    if not 0 <= remove < 1:
        raise InvalidValueError(f"`remove` is a fraction from 0 to below 1; got {remove}", "remove")


def retention_schedule(kept: Sequence[float], **more: Any) -> TokenSchedule:
    """Return the schedule of fractions that were learned, each at most that of the layer before."""
    values, lowest = [], 1.0
    for value in kept:
        lowest = min(lowest, max(0.0, float(value)))
        values.append(lowest)
    return TokenSchedule(TOP, tuple(values), **more)
