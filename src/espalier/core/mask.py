"""Scores of units, and masks: which units are kept."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, Self

import torch
from torch import Tensor

from .errors import InvalidValueError, UnknownNameError


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
