"""Plans: what to keep, in the numbering of the unpruned model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .errors import EspalierError
from .mask import Mask

PLAN_VERSION = 1
MOST_UNITS = 20_000_000  # ten times the largest known model: a larger number in a file is damage


@dataclass(frozen=True)
class Plan:
    """What to keep, always in the numbering of the unpruned model, and where that choice came from."""

    keep: dict[str, list[int]]
    units: dict[str, int]
    origin: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kept in self.keep.items():
            if name not in self.units:
                raise EspalierError(f"the plan keeps units of {name!r} but does not say how many it has")
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
            raise EspalierError(f"the plan is damaged: {odd[0]} stands only in one of keep and units")
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
