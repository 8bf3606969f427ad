"""Criteria: one file each. The file's name is the criterion's; this folder is the registry."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from importlib import import_module
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import AnySite, WeightSite
from ..core.batches import Batches, require_batches
from ..core.errors import InvalidValueError, UnknownNameError
from ..core.mask import Scores
from ..engine.passes import frozen_eval
from ..io import plugin
from ..selection.scopes import SCOPES, groups_of

N_OF_M = "N:M"  # stands for every scope such as 2:4
# of options, by their annotation
KINDS: dict[str, tuple[type, str]] = {
    "bool": (bool, "true or false"),
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "str": (str, "a word"),
}
IDLE = ("lowest", "zero", "any")


@dataclass(eq=False)
class Criterion:
    """A scoring function and what its decorator declares. Call it with a model, its sites and batches."""

    function: Callable[..., Mapping[str, Tensor]]
    targets: tuple[str, ...]  # what it can score: heads, neurons, weights
    rescored: bool = False  # whether it is meant to be computed again after every step
    scope: str = "global"  # what its scores compare: the whole model ("global"), a "layer" or a "row"
    reads_inputs: bool = False  # whether it looks at the inputs of matrices; embeddings and norms have none
    needs_data: bool = False  # whether it needs calibration batches
    needs_labels: bool = False  # whether it reads the labels of those, or a loss that does
    learned: str = ""  # the callback in espalier.training that learns its scores while it prunes
    # the scopes in which `compensate` updates the weights it keeps; "N:M" for all of 2:4 etc.
    repairs: tuple[str, ...] = ()
    batch_invariant: bool = True  # whether the scores are the same however examples are put into batches
    # the score of a unit whose weights are all zero: "lowest"; "zero" where scores have a sign; "any" where
    # it does not follow from the weights alone
    idle: str = "lowest"
    unit: str = ""  # what the numbers are, for axes of figures
    colour: str | None = None  # of its curves in figures, as is the marker
    marker: str | None = None

    def __post_init__(self) -> None:
        update_wrapper(self, self.function)
        self.__name__: str = self.function.__name__
        parameters = signature(self.function).parameters.values()
        own = [p for p in parameters if p.kind is Parameter.KEYWORD_ONLY]
        self.options = [p.name for p in own]
        self.kinds = {p.name: str(getattr(p.annotation, "__name__", p.annotation)) for p in own}

    def __call__(
        self,
        model: nn.Module,
        sites: Sequence[AnySite] | AnySite,
        batches: Iterable[dict[str, Any]] | None = None,
        **options: Any,
    ) -> Scores:
        """Return a score for every unit of the sites; the model is left as it was."""
        name = self.__name__
        found = list(sites) if isinstance(sites, Sequence) else [sites]
        data = batches if isinstance(batches, Batches) else Batches(batches or ())
        others = {site.target for site in found} - set(self.targets)
        if others:
            raise InvalidValueError(
                f"{name} scores {' and '.join(self.targets)}, not {', '.join(sorted(others))}", "target"
            )
        check_options(self, options)
        if self.needs_data:
            require_batches(data, name)
        with frozen_eval(model):
            got = self.function(model, found, data, **options)
        if not isinstance(got, Mapping) or any(site.name not in got for site in found):
            raise InvalidValueError(f"{name} must return Scores with an entry for every site", "criterion")
        scores = Scores()
        for site in found:
            value = torch.as_tensor(got[site.name]).detach().cpu()
            # single weights stay in float32: there may be a hundred million
            if site.target != "weights" or value.dtype != torch.float32:
                value = value.double()
            if tuple(value.shape) != site.shape or value.isnan().any():
                raise InvalidValueError(
                    f"{name} must give {site.name} a number for each unit, shape {site.shape}; "
                    f"got shape {tuple(value.shape)}, {int(value.isnan().sum())} of them nan",
                    "criterion",
                )
            scores[site.name] = value
            if isinstance(site, WeightSite):
                scores.axes[site.name] = site.input_axis
        return scores


def check_options(criterion: Criterion, options: Mapping[str, Any]) -> None:
    """Raise an error for a value that is not of the kind its annotation names."""
    for name, value in options.items():
        kind, words = KINDS.get(criterion.kinds.get(name, ""), (object, ""))
        if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
            raise InvalidValueError(f"`{name}` of {criterion.__name__} is {words}; got {value!r}", name)


def criterion(
    *targets: str, scope: str = "global", idle: str = "lowest", **facts: Any
) -> Callable[[Callable[..., Mapping[str, Tensor]]], Criterion]:
    """Declare a function (model, sites, batches, *, options) -> Scores as a criterion of these targets.

    `scope`, `idle` and `facts` are fields of `Criterion`: @criterion("heads", rescored=True, unit="nats").
    """
    if scope not in SCOPES:
        raise UnknownNameError("scope of scores", scope, SCOPES, "scope")
    if idle not in IDLE:
        raise UnknownNameError("score of an idle unit", idle, IDLE, "idle")
    return lambda function: Criterion(function, targets, scope=scope, idle=idle, **facts)


def names(target: str | None = None) -> list[str]:
    """Return the names of the built-in criteria, or of those that can score a target."""
    found = sorted(info.name for info in iter_modules(__path__) if not info.name.startswith("_"))
    return [name for name in found if target is None or target in load(name).targets]


def load(name: str | Path) -> Criterion:
    """Return a criterion by its name, or by the path of a Python file of your own: `load("./mine.py")`."""
    name, known = str(name), names()
    stem = Path(name).stem
    if not name.endswith(".py") and name not in known:
        raise UnknownNameError("criterion", name, known, "method")
    module = plugin.load(name) if name.endswith(".py") else import_module(f"{__name__}.{name}")
    found = getattr(module, stem, None)
    if not isinstance(found, Criterion):
        others = [key for key, value in vars(module).items() if isinstance(value, Criterion)]
        raise UnknownNameError(
            f"criterion in {name}:",
            stem,
            others,
            "method",
            f'The file and the function share a name: write @criterion("heads") above def {stem}(…).',
        )
    return found


def repairs(criterion: Criterion, scope: str) -> bool:
    """Whether `compensate` prunes for this criterion in this scope, updating the weights that are kept."""
    return (N_OF_M if groups_of(scope) else scope) in criterion.repairs


__all__ = ["Batches", "Criterion", "Scores", "criterion", "load", "names", "repairs"]
