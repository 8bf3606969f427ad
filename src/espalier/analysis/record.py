"""What run.json and rows.jsonl hold: one checked type for each, before anything is computed on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, PrivateAttr, ValidationError

from ..core.errors import DataError, FormatError
from ..evaluation import metrics
from ..evaluation.predictions import unpack
from ..io.files import read_json
from ..io.paths import ROWS, RUN
from ..io.rows import read_rows
from .curves import BASE, ONE_SHOT

VERSION = 2
MOST_UNITS = 2**24  # heads or neurons of a model, also with every layer as wide as the widest
RUN_NAMES = {"strategies": "methods", "kind": "target", "parts": "splits"}
RUN_NAMES |= {"within": "tolerance", "length": "max_length"}
TRAINING_NAMES = {"batch": "batch_size", "rate": "lr", "refresh": "mask_interval"}
ROW_NAMES = {"strategy": "method", "way": "phase", "cut": "order", "refresh": "mask_interval"}
COSTS = ("units", "parameters", "macs", "zeros", "weights", "all_zeros", "bytes")
Unit = tuple[int, int]  # layer, unit
Fraction = Annotated[float, Field(ge=0, le=1)]
Pair = Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)]
Name = Annotated[str, Field(min_length=1)]
Found = TypeVar("Found", bound="Checked")


class Checked(BaseModel):
    """An object of a file: every value of its type, no infinite number; other keys are kept unread."""

    model_config = ConfigDict(
        extra="allow", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=()
    )

    @classmethod
    def check(cls: type[Found], raw: Any, path: Path, where: str = "") -> Found:
        """Return the object, or raise FormatError with the place and the first wrong values."""
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in error.errors()[:3]]
            raise FormatError(f"{path}{where} is damaged: {'; '.join(wrong)}", path) from None


class SiteRecord(Checked):
    units: NonNegativeInt
    uses: PositiveInt = 1


class SplitRecord(Checked):
    n: NonNegativeInt | None = None
    fingerprint: str | None = None
    labels: str | list[float] | None = None

    def truth(self, path: Path) -> np.ndarray | None:
        """Return the labels as numbers, one for each example; None if there are none."""
        try:
            found = None if self.labels is None else unpack(self.labels)
        except (DataError, ValueError) as error:
            raise FormatError(f"{path} has labels that cannot be read: {error}", path) from None
        if found is not None and (not len(found) or self.n not in (None, len(found))):
            raise FormatError(f"{path} has {len(found)} labels for {self.n} examples", path)
        return found


class TrainingRecord(Checked):
    epochs: NonNegativeInt
    examples: NonNegativeInt | None = None
    lr: float


class MethodRecord(Checked):
    step: PositiveInt | Literal["auto"] | None = None
    rescore: bool = False
    criterion: str | None = None
    unit: str | None = None
    colour: str | None = None
    marker: str | None = None


class RunRecord(Checked):
    """run.json: what a run was asked."""

    version: int = VERSION
    model: Name
    metric: Name
    sites: list[SiteRecord] = Field(min_length=1)
    target: str = "units"
    task: str = ""
    methods: list[str] = []
    splits: dict[str, SplitRecord] = {}
    tolerance: float | str | None = None
    training: TrainingRecord | None = None
    settings: dict[str, MethodRecord] = {}
    also: list[str] = []
    notes: list[str] = []
    fingerprint: str | None = None
    max_length: int | None = None
    precision: str | None = None
    seed: int | None = None
    split_seed: int | None = None
    columns: dict[str, str] = {}  # of the task, and its kind, as they were named
    dtype: str | None = None  # that the model was stored in

    @property
    def layers(self) -> tuple[int, ...]:
        """Units per site."""
        return tuple(site.units for site in self.sites)

    @property
    def weight_bytes(self) -> int:
        """Bytes of a stored weight; float32 in runs that do not say."""
        return 2 if self.dtype in ("float16", "bfloat16") else 4

    @property
    def counted(self) -> bool:
        """Whether units are removed one after the other."""
        return self.target != "weights"


class MeasuredRow(Checked):
    """One line of rows.jsonl: what was measured of one method at one level on one split."""

    method: Name
    phase: Literal["one-shot", "recovered", "gradual"]
    trial: NonNegativeInt | None = None
    removed: Fraction
    split: Literal["validation", "test"]
    metrics: dict[str, float | None]
    predictions: str | list[float] | None = None
    n: NonNegativeInt | None = None
    cost: dict[str, int | float | dict[str, int] | None] | None = None
    order: list[Pair] | None = None
    seconds: dict[str, float] | None = None
    seed: int | None = None
    schedule: str | None = None
    mask_interval: NonNegativeInt | None = None
    _line: int = PrivateAttr(0)

    @property
    def line(self) -> int:
        """The number of its line, from 1."""
        return self._line

    @property
    def key(self) -> tuple[str, str, int | None, float, str]:
        """What distinguishes it from every other row of the run."""
        return self.method, self.phase, self.trial, self.removed, self.split

    @property
    def units(self) -> list[Unit]:
        """The units that were removed since the row before, in their order."""
        return [(layer, unit) for layer, unit in self.order or ()]

    @property
    def walked(self) -> bool:
        """Whether it is a step of a walk: one shot, measured on validation."""
        return self.phase == ONE_SHOT and self.split == "validation" and self.method != BASE


def read_record(folder: Path) -> RunRecord:
    """Return run.json as version 2 has it."""
    path = folder / RUN
    raw = read_json(path)
    check_version(raw.get("version", VERSION), path)
    if raw.get("version") != VERSION:
        raw = _rename(raw, RUN_NAMES)
        if isinstance(raw.get("training"), dict):
            raw["training"] = _rename(raw["training"], TRAINING_NAMES)
    found = RunRecord.check({name: value for name, value in raw.items() if value is not None}, path)
    widest, total = max(found.layers), sum(found.layers)
    if not total or (found.counted and max(total, widest * len(found.layers)) > MOST_UNITS):
        raise FormatError(f"{path} names {total} {found.target}; 1 to {MOST_UNITS} can be read", path)
    return found


def read_measured(folder: Path, record: RunRecord | None = None) -> list[MeasuredRow]:
    """Return the rows of a run, each checked by itself, against run.json and against the others."""
    return check_rows(folder / ROWS, read_rows(folder / ROWS), record or read_record(folder))


def check_rows(path: Path, raw: Sequence[Mapping[str, Any]], record: RunRecord) -> list[MeasuredRow]:
    """Return rows in the form of version 2; raise for the first that cannot be right, with its number."""
    rows = [_check_row(path, line, one, record) for line, one in enumerate(raw, 1)]
    seen: dict[Any, int] = {}
    walks: dict[Any, _WalkCheck] = {}
    for row in rows:
        if row.key in seen:
            at = f"{row.method}, {row.phase}, {row.removed:g} removed, {row.split}"
            raise FormatError(
                f"{path}, line {row.line} repeats line {seen[row.key]} ({at}): two programs wrote to this "
                f"run, or a line was copied. Delete line {row.line}",
                path,
            )
        seen[row.key] = row.line
        if record.counted and row.walked:
            walk = walks.setdefault((row.method, row.trial), _WalkCheck(record.layers))
            try:
                walk.add(row)
            except ValueError as error:
                where = f"{path}, line {row.line}"
                raise FormatError(f"{where} does not follow from those before: {error}", path) from None
    return rows


class _WalkCheck:
    """The units that one walk has removed so far: none twice, as many as each level says."""

    def __init__(self, layers: Sequence[int]):
        self.layers, self.removed, self.gone = layers, 0.0, set[Unit]()
        self.ordered: bool | None = None  # whether its rows name their units; older ones may not

    def add(self, row: MeasuredRow) -> None:
        if row.removed <= self.removed:
            raise ValueError(f"{row.removed:g} removed after {self.removed:g}")
        if self.ordered is not None and self.ordered != (row.order is not None):
            raise ValueError("some rows of the method have an `order` and some have none")
        self.ordered, self.removed = row.order is not None, row.removed
        count = row.removed * sum(self.layers)
        if abs(count - round(count)) > 1e-6:
            raise ValueError(f"{row.removed:g} of {sum(self.layers)} is not a whole number of units")
        for layer, unit in row.units:
            if layer >= len(self.layers) or unit >= self.layers[layer]:
                raise ValueError(f"the model has no unit {unit} in layer {layer}")
            if (layer, unit) in self.gone:
                raise ValueError(f"unit {unit} of layer {layer} is removed twice")
            self.gone.add((layer, unit))
        if self.ordered and len(self.gone) != round(count):
            raise ValueError(f"{round(count)} units are removed, but `order` names {len(self.gone)}")


def _check_row(path: Path, line: int, raw: Mapping[str, Any], record: RunRecord) -> MeasuredRow:
    check_version(raw.get("version", VERSION), path)
    row = MeasuredRow.check(_upgrade_row(raw, sum(record.layers)), path, f", line {line}")
    row._line = line
    if row.method == BASE and (row.trial is not None or row.removed):
        raise FormatError(f"{path}, line {line}: the unpruned model has no trials, and nothing removed", path)
    # exp overflows long before a mean loss does, and JSON has no infinity: then the loss stands for both
    measured = record.metric in row.metrics
    if not measured or row.metrics[record.metric] is row.metrics.get("loss") is None:
        raise FormatError(f"{path}, line {line} has no {record.metric} in its metrics", path)
    for name, value in row.metrics.items():
        if value is not None and _is_share(name) and not 0 <= value <= 1:
            raise FormatError(f"{path}, line {line}: {name} is {value:g}, not from 0 to 1", path)
    return row


@cache
def _is_share(name: str) -> bool:
    return name in metrics.names() and metrics.load(name).share


def check_version(version: Any, path: Path) -> None:
    """Raise unless a run or a row is of a version that can be read."""
    if type(version) is not int or not 1 <= version <= VERSION:
        raise FormatError(
            f"{path} has version {version!r}, this espalier reads up to {VERSION}: upgrade", path
        )


def _upgrade_row(raw: Mapping[str, Any], units: int) -> dict[str, Any]:
    """Return a row as version 2 has it."""
    if "strategy" not in raw:
        return dict(raw)
    out = {"phase": ONE_SHOT, **_rename(raw, ROW_NAMES)}
    k = raw.get("k")
    out["removed"] = k / units if type(k) is int else raw.get("level")
    out["cost"] = {name: raw[name] for name in COSTS if name in raw}
    return out


def _rename(raw: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in raw.items()}
