"""The sizes of the models that the paper pruned, counted on models without weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .. import recipe


@dataclass(frozen=True)
class Shape:
    """Physical layers and their heads. ALBERT has one layer, whose heads have twelve uses each."""

    layers: tuple[int, ...]  # heads per layer; () if unknown
    uses: int = 1
    parameters: int | None = None
    parameters_per_unit: int = 0
    count: int | None = None  # heads, where `layers` is unknown

    @property
    def units(self) -> int:
        return sum(self.layers) if self.count is None else self.count


def published_shape(name: str) -> Shape | None:
    """Return the size of a model by its name in the published files: BERT, ALBERT, …; None if unknown."""
    for each in recipe.names():
        found = recipe.load(each)
        if found.published is not None and found.published.name == name:
            return _count(each)
    return None


@cache
def _count(recipe_name: str) -> Shape:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from ...architectures.sites import sites
    from ...evaluation.cost import parameters

    with torch.device("meta"):  # shapes only: no memory, no weights
        config = AutoConfig.for_model(**recipe.load(recipe_name).shape)
        model = AutoModelForSequenceClassification.from_config(config)
    heads = sites(model, "heads")
    return Shape(
        layers=tuple(site.units for site in heads),
        uses=heads[0].uses,
        parameters=parameters(model),
        parameters_per_unit=heads[0].parameters_per_unit(),
    )
