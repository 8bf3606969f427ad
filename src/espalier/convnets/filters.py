"""Filters: which exist, how important each is, and their removal with all that depends on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import WeightSite
from ..core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from ..core.mask import Mask, Plan, Scores
from ..engine.passes import evaluating
from ..io.plugin import import_optional

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Part:
    """The channels of one module that belong to the units of a site: `units[i]` owns `channels[i]`."""

    module: Any
    channels: Tensor
    units: Tensor


@dataclass(frozen=True)
class FilterSite:
    """Filters that can only be removed together: unit i is filter i of every writer.

    `readers` take the maps of the filters as input, `norms` scale them.
    """

    name: str
    units: int
    writers: tuple[Part, ...]
    norms: tuple[Part, ...]
    readers: tuple[Part, ...]

    target = "filters"

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.units,)


def filter_sites(net: nn.Module, example: Tensor) -> list[FilterSite]:
    """Return the filters of a net in the order of its modules; a last layer, which writes classes, has none.

    `example` is a batch of images; of another size than the net takes, its own error names the layer.
    """
    return [site for site, _ in _groups(net, example)]


def _groups(net: nn.Module, example: Tensor) -> list[tuple[FilterSite, Any]]:
    graph = _graph(net, example)
    names = {id(module): name for name, module in net.named_modules()}
    place = {name: number for number, name in enumerate(names.values())}
    found = []
    for group in graph.get_all_groups(root_module_types=[*CONVOLUTIONS, nn.Linear]):
        units = int(max(max(item.root_idxs) for item in group)) + 1
        parts: dict[str, list[Part]] = {"writers": [], "norms": [], "readers": []}
        for item in group:
            module, reads = item.dep.target.module, "in_channels" in item.dep.handler.__name__
            if id(module) in names:
                kind = "readers" if reads else "norms" if isinstance(module, NORMS) else "writers"
                part = Part(module, torch.tensor(item.idxs), torch.tensor(item.root_idxs))
                parts[kind].append(part)
        for part in [*parts["writers"], *parts["readers"]]:
            _check_groups(names[id(part.module)], part.module)
        if parts["readers"] and any(isinstance(part.module, CONVOLUTIONS) for part in parts["writers"]):
            first = min((names[id(part.module)] for part in parts["writers"]), key=place.__getitem__)
            site = FilterSite(
                f"{first}/filters", units, **{kind: tuple(some) for kind, some in parts.items()}
            )
            found.append((place[first], site, group))
    if not found:
        raise UnsupportedError(
            "no convolution of the net feeds another layer: there are no filters to remove"
        )
    return [(site, group) for _, site, group in sorted(found, key=lambda each: each[0])]


def _graph(net: nn.Module, example: Tensor) -> Any:
    pruning: Any = import_optional("torch_pruning", "convnets", "filters of convolution nets")
    try:
        with evaluating(net):
            return pruning.DependencyGraph().build_dependency(net, example_inputs=example)
    except RuntimeError as error:
        shape = "×".join(map(str, example.shape))
        raise InvalidValueError(
            f"the net does not take an `example` of {shape}: {error}", "example"
        ) from error


def _check_groups(name: str, module: Any) -> None:
    groups = getattr(module, "groups", 1)
    if groups not in (1, getattr(module, "in_channels", 1)):
        raise UnsupportedError(
            f"{name} is a convolution in {groups} groups, which must keep as many channels each: "
            "only plain and depthwise convolutions can be pruned"
        )


def l1(sites: Sequence[FilterSite]) -> Scores:
    """Return Σ|w| of each filter, over all convolutions that write it (Li et al., arXiv 1608.08710)."""

    def score(site: FilterSite) -> Tensor:
        total = torch.zeros(site.units, dtype=torch.float64)
        for part in site.writers:
            size = _rows(part.module).detach().double().abs().sum(1).cpu()
            total.index_add_(0, part.units, size[part.channels])
        return total

    return Scores({site.name: score(site) for site in sites})


def scales(sites: Sequence[FilterSite]) -> Scores:
    """Return |γ| of each filter's batch norm, the largest if several (network slimming, arXiv 1708.06519)."""

    def score(site: FilterSite) -> Tensor:
        if not site.norms:
            raise UnsupportedError(f"{site.name} has no batch norm, whose scale would be its score: use l1")
        total = torch.zeros(site.units, dtype=torch.float64)
        for part in site.norms:
            size = part.module.weight.detach().double().abs().cpu()[part.channels]
            total.scatter_reduce_(0, part.units, size, "amax")
        return total

    return Scores({site.name: score(site) for site in sites})


def _rows(module: Any) -> Tensor:
    weight: Tensor = module.weight
    return weight.transpose(0, 1).flatten(1) if getattr(module, "transposed", False) else weight.flatten(1)


def remove_filters(net: nn.Module, mask: Mask, example: Tensor) -> Plan:
    """Remove filters in place, with the channels of norms and of layers that read them; return what is kept.

    Every site keeps at least one filter: a net without any would have no output.
    """
    groups = {site.name: (site, group) for site, group in _groups(net, example)}
    for name, kept in mask.items():
        if name not in groups:
            raise UnknownNameError("filters", name, groups, "mask")
        if kept.numel() != groups[name][0].units:
            wanted = groups[name][0].units
            raise InvalidValueError(f"{name} has {wanted} filters, its `mask` {kept.numel()}", "mask")
        if not kept.any():
            raise InvalidValueError(f"the `mask` removes every filter of {name}; keep at least one", "mask")
    graph = _graph(net, example)
    for name, kept in mask.items():
        removed = (~kept).nonzero().flatten().tolist()
        if removed:
            root = groups[name][1][0].dep
            graph.get_pruning_group(root.target.module, root.handler, removed).prune()
    return Plan.of(
        Mask({name: mask.get(name, torch.ones(site.units).bool()) for name, (site, _) in groups.items()})
    )


def weight_sites(net: nn.Module) -> list[WeightSite]:
    """Return every convolution and linear layer as a matrix of single weights, for masks and N:M."""

    def named() -> Iterator[WeightSite]:
        for path, module in net.named_modules():
            if isinstance(module, (*CONVOLUTIONS, nn.Linear)):
                parent, _, last = path.rpartition(".")
                yield WeightSite(f"{parent}/{last}" if parent else last, module, "channels")

    return list(named())
