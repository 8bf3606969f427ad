"""The nouns of a recipe: what is compared on what, said once and checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ...core.errors import EspalierError, suggest

T = TypeVar("T")


@dataclass(frozen=True)
class Mode:
    """One way to run it: which texts score, which choose, which report, and what is compared."""

    calibration_split: str
    calibration: int
    validation_split: str
    validation: int
    test_split: str
    test: int
    strategies: tuple[str, ...]
    first: bool = False  # the first so many in their own order, rather than parts drawn apart by the seed
    batch_size: int | None = None  # rows of a scoring batch; None: whatever is fast
    score_dropped: bool = False  # texts whose label is dropped are still scored, though never evaluated
    entropy_calibration: int | None = None  # where entropy read more texts than gnorm did

    @property
    def disjoint(self) -> bool:
        """Whether no text serves two purposes."""
        splits = {self.calibration_split, self.validation_split, self.test_split}
        return not self.first or len(splits) == 3


@dataclass(frozen=True)
class Published:
    """What the paper reports: the point it chose, and its curves at some levels."""

    name: str  # as it stands in the names of the published files
    removed: int  # units at the chosen point
    accuracy: tuple[float, ...]  # before, after
    megabytes: tuple[float, ...]  # before, after: float32 parameters, 2^20 bytes each
    levels: tuple[int, ...] = ()  # units removed
    curves: dict[str, tuple[float, ...]] = field(default_factory=dict)  # strategy -> accuracies


@dataclass(frozen=True)
class Recipe:
    """A comparison in one file. `labels` says which class of the model a label of the data is; what it does
    not name is dropped, and if it names none, numbers stand for themselves and words for the model's own."""

    name: str
    about: str
    model: str
    dataset: str
    text: str
    honest: Mode
    faithful: Mode | None = None
    config: str | None = None
    pair: str | None = None
    label: str = "label"
    labels: dict[str, int] = field(default_factory=dict)
    length: int = 512  # tokens; longer texts are cut off
    seed: int = 0
    paper: str | None = None
    notes: tuple[str, ...] = ()  # where a faithful run still differs from what was published
    shape: dict[str, Any] = field(default_factory=dict)  # a transformers config
    published: Published | None = None

    @property
    def task(self) -> str:
        """The data as `--task` takes it: `nyu-mll/glue:mnli`."""
        return f"{self.dataset}:{self.config}" if self.config else self.dataset

    def mode(self, faithful: bool = False) -> Mode:
        if faithful and self.faithful is None:
            raise EspalierError(f"the recipe {self.name} has no [faithful] part: leave --faithful out")
        return self.faithful if faithful and self.faithful else self.honest


def read(name: str, raw: Mapping[str, Any], where: str) -> Recipe:
    """A recipe from what a TOML file says."""
    recipe = _filled(Recipe, {**raw, "name": name}, where)
    for part in (recipe.honest, recipe.faithful):
        if part is not None and not part.strategies:
            raise EspalierError(f"{where}: strategies is empty; write for example ['gnorm', 'random:25']")
    if recipe.shape and not isinstance(recipe.shape.get("model_type"), str):
        raise EspalierError(f"{where}: [shape] is a transformers config, so it needs a model_type")
    if not recipe.honest.disjoint:
        raise EspalierError(
            f"{where}: [honest] takes the first texts of one split for two purposes; leave first out"
        )
    if recipe.published is not None:
        _check(recipe.published, where)
    return recipe


def _check(said: Published, where: str) -> None:
    if len(said.accuracy) != 2 or len(said.megabytes) != 2:
        raise EspalierError(f"{where}: accuracy and megabytes are two numbers each, before and after")
    for strategy, curve in said.curves.items():
        if len(curve) != len(said.levels):
            raise EspalierError(
                f"{where}: {strategy} has {len(curve)} accuracies for {len(said.levels)} levels"
            )


def _filled(kind: type[T], raw: Mapping[str, Any], where: str) -> T:
    """A dataclass from a table: nothing unknown, nothing missing, everything of its type."""
    hints = get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    for key in raw:
        if key not in known:
            raise EspalierError(f"{where} has no key {key!r}{suggest(key, known)}")
    for key, one in known.items():
        if key not in raw and one.default is MISSING and one.default_factory is MISSING:
            raise EspalierError(f"{where} lacks the key {key!r}")
    return kind(**{key: _value(hints[key], value, f"{where}: {key}") for key, value in raw.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    """The value as its hint wants it: tables become dataclasses, lists tuples, whole numbers floats."""
    if get_origin(hint) is UnionType:  # X | None
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if hint in (Mode, Published) and isinstance(value, dict):
        return _filled(hint, value, where)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_value(get_args(hint)[0], each, where) for each in value)
    if get_origin(hint) is dict and isinstance(value, dict):
        return {key: _value(get_args(hint)[1], each, f"{where}.{key}") for key, each in value.items()}
    if hint is Any:
        return value
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise EspalierError(f"{where} should be {_said(hint)}; it is {value!r}")
    if hint is int and value < 0:
        raise EspalierError(f"{where} should not be negative; it is {value}")
    return value


def _said(hint: Any) -> str:
    words = {
        str: "a text in quotes",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
    }
    if hint in words:
        return words[hint]
    return "a list" if get_origin(hint) is tuple else "a table"
