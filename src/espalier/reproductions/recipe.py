"""Recipes: a published comparison in one TOML file, checked when it is read. Reading one runs no code."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from ..core.errors import UnknownNameError, UnsupportedError, suggest
from ..io.files import reading

FOLDER = Path(__file__).parent
MODES = ("honest", "faithful")
RENAMED = {"strategies": "methods", "length": "max_length"}  # keys of older recipes
Two = Annotated[tuple[float, ...], Field(min_length=2, max_length=2)]


class Section(BaseModel):
    """A table of a recipe: no unknown keys, no missing keys, every value of its type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class Mode(Section):
    """One way to run a recipe: which examples score, choose and report, and what is compared."""

    calibration_split: str
    calibration: NonNegativeInt
    validation_split: str
    validation: NonNegativeInt
    test_split: str
    test: NonNegativeInt
    methods: tuple[str, ...] = Field(min_length=1)
    first: bool = False  # the first examples of each split in their order, instead of disjoint seeded draws
    batch_size: NonNegativeInt | None = None  # examples of a scoring batch; None: by length
    score_dropped: bool = False  # also score examples whose label is dropped; they are never evaluated
    own_calibration: dict[str, NonNegativeInt] = {}  # criteria that read another number of examples

    @property
    def disjoint(self) -> bool:
        """Whether no example serves two purposes."""
        return not self.first or len({self.calibration_split, self.validation_split, self.test_split}) == 3


class Published(Section):
    """What the paper reports: the point it chose, and its curves at some levels."""

    name: str  # in the names of the published files
    removed: NonNegativeInt  # units at the chosen point
    accuracy: Two  # before, after
    megabytes: Two  # before, after: float32 parameters, 2^20 bytes each
    levels: tuple[NonNegativeInt, ...] = ()  # units removed
    curves: dict[str, tuple[float, ...]] = {}  # method -> accuracies

    @model_validator(mode="after")
    def _check_curves(self) -> Published:
        for method, curve in self.curves.items():
            if len(curve) != len(self.levels):
                raise ValueError(f"{method} has {len(curve)} accuracies for {len(self.levels)} levels")
        return self


class Recipe(Section):
    """A comparison of methods on one model and one task.

    `labels` maps labels of the data to classes of the model; labels that it does not name are dropped. If it
    is empty, numbers are numbers of classes and words are names of the model's classes.
    """

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
    labels: dict[str, NonNegativeInt] = {}
    max_length: NonNegativeInt = 512  # tokens; longer texts are truncated
    seed: NonNegativeInt = 0
    paper: str | None = None
    notes: tuple[str, ...] = ()  # where a faithful run still differs from what was published
    shape: dict[str, Any] = {}  # a transformers config
    published: Published | None = None

    @property
    def task(self) -> str:
        """The dataset with its config: `nyu-mll/glue:mnli`."""
        return f"{self.dataset}:{self.config}" if self.config else self.dataset

    def mode(self, faithful: bool = False) -> Mode:
        """Return the settings as published, or with splits that share no example."""
        if not faithful:
            return self.honest
        if self.faithful is None:
            raise UnsupportedError(f"the recipe {self.name} has no [faithful] table")
        return self.faithful

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        if self.shape and not isinstance(self.shape.get("model_type"), str):
            raise ValueError("[shape] is a transformers config and needs a model_type")
        if not self.honest.disjoint:
            raise ValueError("[honest] uses the first examples of one split for two purposes; remove `first`")
        return self


def names() -> list[str]:
    """List the recipes of all reproductions."""
    return sorted(_files())


def rows() -> list[dict[str, str]]:
    """Describe every recipe in one row."""
    found = [load(name) for name in names()]
    return [{"recipe": r.name, "model": r.model, "task": r.task, "about": r.about} for r in found]


def load(name: str | Path) -> Recipe:
    """Return a recipe by its name, or by the path of a TOML file: `load("./mine.toml")`."""
    path = Path(name) if str(name).endswith(".toml") else _files().get(str(name))
    if path is None:
        raise UnknownNameError("recipe", name, names(), "recipe", "Or give the path of a TOML file.")
    with reading(path, "a recipe in TOML"):
        raw = {"name": path.stem, **_rename(tomllib.loads(path.read_text(encoding="utf-8")))}
        try:
            # Strict JSON lets a list be a tuple and a whole number a float, but true no number and "5" no 5.
            return Recipe.model_validate_json(json.dumps(raw, default=str))
        except ValidationError as error:
            raise ValueError("; ".join(map(_explain, error.errors()))) from None


def _files() -> dict[str, Path]:
    return {path.stem: path for path in FOLDER.glob("*/recipes/*.toml")}


def _rename(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table of an older recipe with the keys of today."""
    found = {RENAMED.get(key, key): value for key, value in table.items()}
    if "entropy_calibration" in found:
        found["own_calibration"] = {"entropy": found.pop("entropy_calibration")}
    modes = {key: _rename(found[key]) for key in MODES if isinstance(found.get(key), dict)}
    return {**found, **modes}


def _explain(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        known = [*Recipe.model_fields, *Mode.model_fields, *Published.model_fields]
        return f"unknown key {where}{suggest(str(error['loc'][-1]), known)}"
    return f"{where or 'recipe'}: {error['msg']}"
