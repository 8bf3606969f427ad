"""The drawer of criteria: one file each; the file's name is the criterion's, the folder is the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Protocol

import torch
from torch import nn

from ..core.batches import Batches
from ..core.errors import EspalierError, suggest
from ..core.mask import Scores
from ..engine.gates import quiet
from ..io import plugin
from ..selection.scopes import SCOPES


class Criterion(Protocol):
    targets: tuple[str, ...]
    rescored: bool
    scope: str
    inputs: bool
    __name__: str

    def __call__(
        self, model: nn.Module, sites: Sequence[Any], batches: Batches = ..., **options: Any
    ) -> Scores: ...


def criterion(
    *targets: str, rescored: bool = False, scope: str = "global", inputs: bool = False
) -> Callable[[Callable[..., Any]], Criterion]:
    """Declare a scoring function, the targets it can score, whether it is meant to be used again after
    every cut, within what its scores compare: the whole model ("global"), a "layer" or a "row"; and whether
    it looks at inputs, so that an embedding or a norm, which multiplies none, has no score."""
    if scope not in SCOPES:
        raise EspalierError(f"scores compare within one of {', '.join(SCOPES)}; got {scope!r}")

    def wrap(function: Callable[..., Any]) -> Criterion:
        name = function.__name__

        @wraps(function)
        def score(
            model: nn.Module,
            sites: Sequence[Any],
            batches: Iterable[dict[str, Any]] | None = None,
            **options: Any,
        ) -> Scores:
            sites = [sites] if hasattr(sites, "name") else list(sites)
            data = batches if isinstance(batches, Batches) else Batches(batches or ())
            alien = {site.target for site in sites} - set(targets)
            if alien:
                raise EspalierError(f"{name} scores {' and '.join(targets)}, not {', '.join(sorted(alien))}")
            with quiet(model):
                got = function(model, sites, data, **options)
            scores = Scores()
            if not isinstance(got, Mapping):
                raise EspalierError(f"{name} must return Scores; it returned {type(got).__name__}")
            for site in sites:
                if site.name not in got:
                    raise EspalierError(f"{name} gave {site.name} no scores")
                value = torch.as_tensor(got[site.name]).detach().cpu()
                # A hundred million weights stay in float32; of units there are few.
                if site.target != "weights" or value.dtype != torch.float32:
                    value = value.double()
                if tuple(value.shape) != site.shape or value.isnan().any():
                    raise EspalierError(
                        f"{name} must give {site.name} a number for each unit, shape {site.shape}; "
                        f"it gave shape {tuple(value.shape)}, {int(value.isnan().sum())} of them nan"
                    )
                scores[site.name] = value
                if site.target == "weights":
                    scores.axes[site.name] = site.input_axis
            return scores

        score.targets = targets  # type: ignore[attr-defined]
        score.rescored = rescored  # type: ignore[attr-defined]
        score.scope = scope  # type: ignore[attr-defined]
        score.inputs = inputs  # type: ignore[attr-defined]
        return score  # type: ignore[return-value]

    return wrap


def names() -> list[str]:
    return sorted(info.name for info in iter_modules(__path__))


def load(name: str | Path) -> Criterion:
    """A criterion by its name, or by the path of a Python file of your own: `load("./mine.py")`."""
    name = str(name)
    if name.endswith(".py"):
        module, stem = plugin.run(name), Path(name).stem
        found: Criterion | None = getattr(module, stem, None)
        if not hasattr(found, "targets"):
            raise EspalierError(_nameless(name, stem, module))
        return found  # type: ignore[return-value]
    if name not in names():
        raise EspalierError(f"no criterion {name!r}{suggest(name, names())} There are {_listed()}")
    return getattr(import_module(f"{__name__}.{name}"), name)


def _listed() -> str:
    """for heads: entropy, gnorm, …; for weights: fisher, …"""
    found = {name: load(name).targets for name in names()}
    kinds = dict.fromkeys(kind for own in found.values() for kind in own)
    return "; ".join(
        f"for {kind}: {', '.join(name for name, own in found.items() if kind in own)}"
        for kind in sorted(kinds)
    )


def _nameless(file: str, stem: str, module: Any) -> str:
    """A file without the criterion it is named for, and what it has instead."""
    there = [name for name, each in vars(module).items() if hasattr(each, "targets") and callable(each)]
    hint = f'put @criterion("heads") above def {stem}(model, sites, batches)'
    if there:
        hint = f"it defines {', '.join(there)}: let the file and the function share a name ({there[0]}.py)"
    return f"{file} defines no @criterion called {stem!r}; {hint}"


__all__ = ["Batches", "Criterion", "Scores", "criterion", "load", "names"]
