"""Scores of units, and which units are kept: a mask of the model as it is now, a plan of the unpruned one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from .errors import EspalierError, FolderError, FormatError, InvalidValueError, UnknownNameError
from .strict_json import parse_json

PLAN_VERSION = 1
# More units in a file are damage, or meant to fill memory: beyond the first, a site has 2^16 on average.
MOST_OF_A_SITE, MOST_ON_AVERAGE = 1 << 20, 1 << 16


class NamedShape(Protocol):
    """What a mask needs of a site: its name, and the shape of a tensor with one entry per unit."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class Scores(dict[str, Tensor]):
    """The importance of each unit, one tensor per site. Units with higher scores are kept.

    `axes` holds the input axis of each matrix that is scored weight by weight: rows run along it.
    """

    def __init__(
        self,
        entries: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = (),
        axes: Mapping[str, int] | None = None,
    ):
        super().__init__(entries)
        self.axes = dict(getattr(entries, "axes", {}) if axes is None else axes)


class Mask(dict[str, Tensor]):
    """Which units are kept, one boolean tensor per site, in the numbering of the model as it is now."""

    def __init__(self, entries: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = ()):
        super().__init__({name: _boolean(name, value) for name, value in dict(entries).items()})

    def __setitem__(self, name: str, value: Tensor) -> None:
        super().__setitem__(name, _boolean(name, value))

    @classmethod
    def ones(cls, sites: Iterable[NamedShape]) -> Self:
        """Return the mask that keeps every unit."""
        return cls({site.name: torch.ones(site.shape, dtype=torch.bool) for site in sites})

    @classmethod
    def without(cls, sites: Sequence[NamedShape], units: Mapping[int | str, Iterable[int]]) -> Self:
        """Return the mask that removes `{layer: [units]}`; a layer is a number or the name of a site.

        Numbers count the sites, from the end if negative.
        """
        names = [site.name for site in sites]
        mask = cls.ones(sites)
        for layer, removed in units.items():
            if isinstance(layer, int) and not -len(names) <= layer < len(names):
                raise InvalidValueError(f"no layer {layer}: `units` takes 0 to {len(names) - 1}", "units")
            name = names[layer] if isinstance(layer, int) else layer
            if name not in mask:
                raise UnknownNameError("site", name, names, "units")
            for unit in removed:
                if not 0 <= unit < mask[name].numel():
                    last = mask[name].numel() - 1
                    raise InvalidValueError(f"{name} has no unit {unit}: it has 0 to {last}", "units")
                mask[name][unit] = False
        return mask

    @property
    def kept(self) -> float:
        """The fraction of units that are kept."""
        total = sum(m.numel() for m in self.values())
        return sum(int(m.sum()) for m in self.values()) / total if total else 1.0


def _boolean(name: str, value: Tensor) -> Tensor:
    value = torch.as_tensor(value)
    if value.dtype != torch.bool:
        if not ((value == 0) | (value == 1)).all():
            raise InvalidValueError(
                f"a mask holds 0 and 1; {name} has values from {value.min():.3g} to {value.max():.3g}. "
                "To turn scores into a mask: remove_lowest(scores, remove=0.5)"
            )
        value = value.bool()
    return value


@dataclass(frozen=True)
class Plan:
    """Which units to keep, always in the numbering of the unpruned model, and how they were chosen."""

    keep: dict[str, list[int]]
    units: dict[str, int]
    origin: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kept in self.keep.items():
            units = self.units.get(name)
            if units is None or any(not 0 <= unit < units for unit in kept):
                raise InvalidValueError(
                    f"`keep` lists units {_runs(kept)} of {name!r}, of which `units` gives {units}", "keep"
                )
        object.__setattr__(self, "keep", {name: sorted(set(k)) for name, k in self.keep.items()})

    @classmethod
    def of(cls, mask: Mask, /, **origin: Any) -> Plan:
        """Return the plan of a mask on the unpruned model."""
        for name, m in mask.items():
            if m.dim() != 1:
                raise InvalidValueError(
                    f"a plan lists whole units; {name} masks single weights, {tuple(m.shape)}: use zero()",
                    "mask",
                )
        return cls(
            keep={name: m.nonzero().flatten().tolist() for name, m in mask.items()},
            units={name: m.numel() for name, m in mask.items()},
            origin=origin,
        )

    def mask(self) -> Mask:
        """Return the plan as a mask on the unpruned model."""
        out = Mask({name: torch.zeros(n, dtype=torch.bool) for name, n in self.units.items()})
        for name, kept in out.items():
            kept[self.keep[name]] = True
        return out

    def then(self, later: Plan | Mask) -> Plan:
        """Return this plan followed by another in the numbering of the model that this one leaves.

        >>> first = Plan(keep={"0/heads": [1, 4, 5]}, units={"0/heads": 12})
        >>> first.then(Mask({"0/heads": torch.tensor([True, False, True])})).keep
        {'0/heads': [1, 5]}
        """
        step = Plan.of(later) if isinstance(later, Mask) else later
        keep, units = dict(self.keep), dict(self.units)
        for name, kept in step.keep.items():
            left = self.keep.get(name, list(range(step.units[name])))
            if step.units[name] != len(left):
                raise InvalidValueError(
                    f"{name} has {len(left)} units left, `later` expects {step.units[name]}", "later"
                )
            keep[name] = [left[i] for i in kept]
            units.setdefault(name, step.units[name])
        return Plan(keep, units, {**self.origin, **step.origin})

    @property
    def kept(self) -> float:
        """The fraction of the planned units that are kept."""
        total = sum(self.units.values())
        return sum(len(k) for k in self.keep.values()) / total if total else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON; runs of units are written as `0-4,7`, so that 3,072 neurons can be read."""
        return {
            "version": PLAN_VERSION,
            "keep": {name: _runs(kept) for name, kept in self.keep.items()},
            "units": self.units,
            "origin": self.origin,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Plan:
        """Read what `to_dict` wrote."""
        if not isinstance(raw, Mapping) or not {"version", "keep", "units"} <= set(raw):
            raise FormatError("not a plan: a plan has the keys version, keep, units and origin")
        if type(raw["version"]) is not int or not 1 <= raw["version"] <= PLAN_VERSION:
            raise FormatError(
                f"the plan has version {raw['version']}; this espalier reads up to {PLAN_VERSION}. "
                "Upgrade it: pip install --upgrade espalier"
            )
        try:
            units = {str(name): _count(n, name) for name, n in raw["units"].items()}
            if sum(units.values()) > MOST_OF_A_SITE + MOST_ON_AVERAGE * len(units):
                raise ValueError(f"{sum(units.values()):,} units are more than any model has")
            if set(raw["keep"]) != set(units):
                raise ValueError(f"{min(set(raw['keep']) ^ set(units))} is only in one of keep and units")
            keep = {name: from_runs(runs, units[name]) for name, runs in raw["keep"].items()}
            return cls(keep, units, dict(raw.get("origin") or {}))
        except (AttributeError, TypeError, ValueError) as error:
            raise FormatError(f"the plan is damaged: {error}") from None

    def save(self, path: str | Path, **more: Any) -> None:
        """Write the plan as JSON; `more` are further entries of the file."""
        try:
            text = json.dumps({**self.to_dict(), **more}, indent=1)
        except (TypeError, ValueError) as error:
            raise InvalidValueError(f"`origin` of a plan must be plain JSON: {error}", "origin") from None
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise FolderError(f"cannot write the plan {path}: {error.strerror}", path) from error

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan from a JSON file."""
        try:
            return cls.from_dict(parse_json(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise FolderError(f"cannot read the plan {path}: {error.strerror}", path) from None
        except EspalierError as error:
            raise FormatError(f"{path}: {error}", path) from None
        except ValueError as error:
            raise FormatError(f"{path} is not JSON: {error}", path) from None


def _runs(units: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> '0-2,5'"""
    # in a run, unit and position rise together
    by_run = groupby(enumerate(sorted(units)), key=lambda pair: pair[1] - pair[0])
    runs = [[unit for _, unit in run] for _, run in by_run]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value <= MOST_OF_A_SITE:
        raise ValueError(f"{name!r} has {value!r} units; valid are whole numbers up to {MOST_OF_A_SITE:,}")
    return value


def from_runs(text: str, units: int) -> list[int]:
    """'0-2,5' -> [0, 1, 2, 5]; raises ValueError unless runs of that many units rise."""
    if not isinstance(text, str):
        raise TypeError(f"units are written as '0-4,7', not {text!r}")
    out: list[int] = []
    for run in text.split(",") if text else ():
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", run)
        if match is None:
            raise ValueError(f"units are written as '0-4,7', not {run[:40]!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        # Before it is expanded: rising runs below `units` are at most `units` numbers.
        if not (out[-1] if out else -1) < first <= last < units:
            raise ValueError(f"the runs of {units} units rise and do not overlap; see {run!r}")
        out += range(first, last + 1)
    return out
