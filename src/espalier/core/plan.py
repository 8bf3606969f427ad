"""Plans: which units to keep, in the numbering of the unpruned model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from .errors import EspalierError, FolderError, FormatError, InvalidValueError
from .mask import Mask

PLAN_VERSION = 1
# More units in a file are damage, or meant to fill memory: beyond the first, a site has 2^16 on average.
MOST_OF_A_SITE, MOST_ON_AVERAGE = 1 << 20, 1 << 16


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
            keep = {name: _from_runs(runs, units[name]) for name, runs in raw["keep"].items()}
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
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise FolderError(f"cannot read the plan {path}: {error.strerror}", path) from None
        except EspalierError as error:
            raise FormatError(f"{path}: {error}", path) from None
        except (ValueError, RecursionError) as error:
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


def _from_runs(text: str, units: int) -> list[int]:
    """'0-2,5' -> [0, 1, 2, 5]"""
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
