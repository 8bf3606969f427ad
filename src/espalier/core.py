"""The nouns: scores, masks, plans, calibration batches. Nothing in this file knows transformers."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from . import processes
from .errors import EspalierError, suggest

PLAN_VERSION = 1
MOST_UNITS = 20_000_000  # a file may say anything; this is ten times the largest model there is


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Says things to stderr, unless the program has set up logging of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr  # whatever it is now: programs and tests replace it
            super().emit(record)


log = logging.getLogger("espalier")
if not log.handlers:
    log.addHandler(_Stderr())
    log.setLevel(logging.INFO)


class Place(Protocol):
    """What core needs of a site: its name, and the shape of a tensor with one entry per unit."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def model_loss(out: Any, batch: Mapping[str, Any]) -> Tensor:
    """The loss the model computed itself, from the labels in the batch."""
    loss = getattr(out, "loss", None)
    if loss is None:
        raise EspalierError(
            "the model returned no loss. Put labels into the batches, or say how to compute one: "
            "Batches(..., loss=lambda out, batch: ...)"
        )
    return loss


def model_inputs(batch: Mapping[str, Any], *, labels: bool = True) -> dict[str, Any]:
    """What of a batch goes to the model: marks for criteria do not, labels only where a loss is wanted."""
    left_out = {"special_tokens_mask"} | (set() if labels else {"labels"})
    return {name: value for name, value in batch.items() if name not in left_out}


def examples_in(batch: Mapping[str, Any]) -> int:
    """How many examples a batch holds."""
    return next((len(value) for value in batch.values() if isinstance(value, Tensor)), 0)


class Batches(list[dict[str, Any]]):
    """Calibration batches you can walk more than once, and the loss that makes gradients of them."""

    def __init__(
        self,
        batches: Iterable[dict[str, Any]] = (),
        loss: Callable[[Any, Mapping[str, Any]], Tensor] = model_loss,
        places: Sequence[Sequence[int]] = (),
        groups: Sequence[Sequence[int]] = (),
        memory: Any = None,
    ):
        super().__init__(batches)
        self.loss = loss
        # which example each row of each batch is, if they were put in another order
        self.places = places
        # which batches count as one, where one was divided to save padding; if not said, each is its own
        self.groups = groups
        self.memory = memory  # a Replay: what of one pass serves the next
        # is told the number of each batch and what the model gave out, by criteria that run it anyway
        self.hear: Callable[[int, Any], None] | None = None

    def each(self, work: Callable[[Sequence[int]], Tensor]) -> Tensor:
        """[groups, …] in float64: what `work` makes of each group's batches, whichever process does it."""
        groups = self.groups or [[number] for number in range(len(self))]
        mine = processes.share([sum(examples_in(self[n]) for n in group) for group in groups])
        return processes.gathered({n: work(groups[n]) for n in mine}, len(groups))

    @property
    def examples(self) -> int:
        return sum(map(examples_in, self))


class Scores(dict[str, Tensor]):
    """How much each unit matters, one tensor per site. Bigger means keep.

    `axes` says, of matrices scored weight by weight, which axis is summed over: rows run along it.
    """

    def __init__(
        self,
        entries: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = (),
        axes: Mapping[str, int] | None = None,
    ):
        super().__init__(entries)
        self.axes = dict(getattr(entries, "axes", {}) if axes is None else axes)


class Mask(dict[str, Tensor]):
    """Which units live, one boolean tensor per site, in the numbering of the model as it is now."""

    def __setitem__(self, name: str, value: Tensor) -> None:
        super().__setitem__(name, _boolean(name, value))

    def __init__(self, entries: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = ()):
        super().__init__({name: _boolean(name, value) for name, value in dict(entries).items()})

    @classmethod
    def ones(cls, sites: Iterable[Place]) -> Mask:
        """Everything lives."""
        return cls({site.name: torch.ones(site.shape, dtype=torch.bool) for site in sites})

    @classmethod
    def without(cls, sites: Sequence[Place], units: Mapping[int | str, Iterable[int]]) -> Mask:
        """All units but those named: `{layer: [units]}`, a layer being a number or a site's name."""
        names = [site.name for site in sites]
        mask = cls.ones(sites)
        for layer, closed in units.items():
            if isinstance(layer, int) and not 0 <= layer < len(names):
                raise EspalierError(
                    f"no layer {layer}: there are {len(names)}, 0 to {len(names) - 1}"
                )
            name = names[layer] if isinstance(layer, int) else layer
            if name not in mask:
                raise EspalierError(f"no site {name!r}{suggest(name, names)} {_few(names)}")
            for unit in closed:
                if not 0 <= unit < mask[name].numel():
                    raise EspalierError(
                        f"{name} has no unit {unit}: it has {mask[name].numel()}, "
                        f"0 to {mask[name].numel() - 1}"
                    )
                mask[name][unit] = False
        return mask

    @property
    def kept(self) -> float:
        """The fraction of units that live."""
        total = sum(m.numel() for m in self.values())
        return sum(int(m.sum()) for m in self.values()) / total if total else 1.0


def _boolean(name: str, value: Tensor) -> Tensor:
    value = torch.as_tensor(value)
    if value.dtype != torch.bool:
        if not ((value == 0) | (value == 1)).all():
            raise EspalierError(
                f"a mask holds 0 and 1; {name} has values from {value.min():.3g} to {value.max():.3g}. "
                "Scores become a mask by selection: lowest(scores, keep=0.5)"
            )
        value = value.bool()
    return value


def _few(names: Sequence[str], n: int = 6) -> str:
    more = f" … ({len(names)} in all)" if len(names) > n else ""
    return f"There are: {', '.join(names[:n])}{more}"


@dataclass(frozen=True)
class Plan:
    """What to keep, always in the numbering of the unpruned model, and where that choice came from."""

    keep: dict[str, list[int]]
    units: dict[str, int]
    origin: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kept in self.keep.items():
            if name not in self.units:
                raise EspalierError(
                    f"the plan keeps units of {name!r} but does not say how many it has"
                )
            if any(not 0 <= unit < self.units[name] for unit in kept):
                raise EspalierError(
                    f"the plan keeps unit {max(kept)} of {name}, which has {self.units[name]}"
                )
        object.__setattr__(self, "keep", {name: sorted(set(k)) for name, k in self.keep.items()})

    @classmethod
    def of(cls, mask: Mask, /, **origin: Any) -> Plan:
        """The plan of a mask on the unpruned model."""
        for name, m in mask.items():
            if m.dim() != 1:
                raise EspalierError(
                    f"a plan names whole units; {name} masks single weights, {tuple(m.shape)}: use zero()"
                )
        return cls(
            keep={name: m.nonzero().flatten().tolist() for name, m in mask.items()},
            units={name: m.numel() for name, m in mask.items()},
            origin=origin,
        )

    def mask(self) -> Mask:
        """The same as a mask on the unpruned model."""
        out = Mask()
        for name, n in self.units.items():
            kept = torch.zeros(n, dtype=torch.bool)
            kept[self.keep[name]] = True
            out[name] = kept
        return out

    def then(self, later: Plan | Mask) -> Plan:
        """This plan, and after it another in the numbering of the model this one leaves.

        >>> first = Plan(keep={"0/heads": [1, 4, 5]}, units={"0/heads": 12})
        >>> first.then(Mask({"0/heads": torch.tensor([True, False, True])})).keep
        {'0/heads': [1, 5]}
        """
        step = Plan.of(later) if isinstance(later, Mask) else later
        keep, units = dict(self.keep), dict(self.units)
        for name, kept in step.keep.items():
            living = self.keep.get(name, list(range(step.units[name])))
            if step.units[name] != len(living):
                raise EspalierError(
                    f"{name} has {len(living)} units left, the later plan speaks of {step.units[name]}"
                )
            keep[name] = [living[i] for i in kept]
            units.setdefault(name, step.units[name])
        return Plan(keep, units, {**self.origin, **step.origin})

    @property
    def kept(self) -> float:
        """The fraction of the planned units that live."""
        total = sum(self.units.values())
        return sum(len(k) for k in self.keep.values()) / total if total else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; runs of units are written as `0-4,7`, so that a person can read 3,072 neurons."""
        return {
            "version": PLAN_VERSION,
            "keep": {name: _runs(kept) for name, kept in self.keep.items()},
            "units": self.units,
            "origin": self.origin,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Plan:
        if not isinstance(raw, Mapping) or not {"version", "keep", "units"} <= set(raw):
            raise EspalierError("not a plan: a plan has the keys version, keep, units and origin")
        if not isinstance(raw["version"], int) or not 1 <= raw["version"] <= PLAN_VERSION:
            raise EspalierError(
                f"the plan has version {raw['version']}; this espalier reads up to {PLAN_VERSION}. "
                "Type: pip install --upgrade espalier"
            )
        try:
            units = {name: int(n) for name, n in raw["units"].items()}
            if sum(units.values()) > MOST_UNITS:
                raise ValueError(f"{sum(units.values()):,} units are more than any model has")
            keep = {name: _from_runs(runs, units[name]) for name, runs in raw["keep"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EspalierError(f"the plan is damaged: {error}") from None
        if set(keep) != set(units):
            odd = sorted(set(keep) ^ set(units))
            raise EspalierError(
                f"the plan is damaged: {odd[0]} stands only in one of keep and units"
            )
        origin = raw.get("origin") or {}
        if not isinstance(origin, Mapping):
            raise EspalierError("the plan is damaged: its origin is not a table")
        return cls(keep, units, dict(origin))

    def save(self, path: str | Path, **more: Any) -> None:
        """Write it as JSON; `more` stands beside it in the file."""
        try:
            text = json.dumps({**self.to_dict(), **more}, indent=1)
        except (TypeError, ValueError) as error:
            raise EspalierError(f"the origin of a plan must be plain JSON: {error}") from None
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise EspalierError(f"cannot write the plan {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        try:
            raw = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise EspalierError(f"cannot read the plan {path}: {error.strerror}") from None
        except ValueError as error:
            raise EspalierError(f"{path} is not JSON: {error}") from None
        try:
            return cls.from_dict(raw)
        except EspalierError as error:
            raise EspalierError(f"{path}: {error}") from None


def _runs(units: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> '0-2,5'"""
    runs: list[list[int]] = []
    for unit in sorted(units):
        if runs and unit == runs[-1][1] + 1:
            runs[-1][1] = unit
        else:
            runs.append([unit, unit])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _from_runs(text: str, units: int) -> list[int]:
    """'0-2,5' -> [0, 1, 2, 5]"""
    if not isinstance(text, str):
        raise TypeError(f"units are written as '0-4,7', not {text!r}")
    out: list[int] = []
    for run in filter(None, text.split(",")):
        first, _, last = run.partition("-")
        if int(last or first) >= units:  # before it is spelled out: a file may say 0-9999999999
            raise ValueError(f"unit {last or first} of {units}")
        out += range(int(first), int(last or first) + 1)
    return out
