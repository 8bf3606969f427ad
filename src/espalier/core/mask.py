"""Scores of units, and masks: which units are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from .errors import EspalierError, suggest


class Place(Protocol):
    """What core needs of a site: its name, and the shape of a tensor with one entry per unit."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


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
                raise EspalierError(f"no layer {layer}: there are {len(names)}, 0 to {len(names) - 1}")
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
