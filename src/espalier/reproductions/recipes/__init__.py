"""The drawer of recipes: one TOML file each; the file's name is the recipe's, the folder is the registry."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path

from ...core.errors import EspalierError, suggest
from .recipe import Mode, Published, Recipe, read


def names() -> list[str]:
    found = (file.name for file in files(__name__).iterdir())
    return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))


def load(name: str | Path) -> Recipe:
    """A recipe by its name, or by the path of a TOML file of your own: `load("./mine.toml")`."""
    name = str(name)
    if name.endswith(".toml"):
        path, where = Path(name), name
        if not path.is_file():
            raise EspalierError(f"no file {name!r}: give the path of a TOML file, or one of {_known()}")
        data = path.read_bytes()
    else:
        if name not in names():
            raise EspalierError(f"no recipe {name!r}{suggest(name, names())} There are: {_known()}")
        data, where = (files(__name__) / f"{name}.toml").read_bytes(), f"the recipe {name}"
    try:
        raw = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise EspalierError(f"{where} is not TOML: {error}") from None
    return read(Path(name).stem if name.endswith(".toml") else name, raw, where)


def published_shape(name: str) -> dict[str, int] | None:
    """The size of a published model, counted on its skeleton; None for a name nobody published.

    `name` is that of the published files: BERT, ALBERT, ROBERTA or XLM_ROBERTA. `layers` are physical: ALBERT
    has one, whose heads have twelve uses each.
    """
    for each in names():
        recipe = load(each)
        if recipe.published is not None and recipe.published.name == name:
            return dict(_counted(each))
    return None


@cache
def _counted(name: str) -> dict[str, int]:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from ...architectures.table import sites
    from ...evaluation.cost import parameters

    with torch.device("meta"):  # shapes only: no memory, no weights
        config = AutoConfig.for_model(**load(name).shape)
        model = AutoModelForSequenceClassification.from_config(config)
    heads = sites(model, "heads")
    return {
        "parameters": parameters(model),
        "parameters_per_unit": heads[0].parameters_per_unit(),
        "units": sum(site.units for site in heads),
        "uses": heads[0].uses,
        "layers": len(heads),
    }


def _known() -> str:
    return ", ".join(names())


__all__ = ["Mode", "Published", "Recipe", "load", "names", "published_shape"]
