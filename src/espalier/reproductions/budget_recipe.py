"""Published ways to prune to a budget, each a TOML file that configures the one engine: `recipe="kwon"`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt, ValidationError

from ..core.errors import InvalidValueError, UnknownNameError
from ..io.files import reading
from .recipe import FOLDER, Section


class BudgetRecipe(Section):
    """How units are scored, searched and repaired; what is None is the default of `prune`."""

    name: str
    about: str
    method: str
    paper: str | None = None
    repair: str | None = None
    target: str | None = None
    search: str | None = None
    calibration: PositiveInt | None = None  # training examples, if the task has as many
    stage: Annotated[float, Field(ge=0, lt=1)] | None = None
    repair_stages: bool | None = None
    rearrange: bool | None = None
    multiple: PositiveInt | None = None
    least_heads: Annotated[float, Field(ge=0, le=1)] | None = None
    notes: tuple[str, ...] = ()  # where it differs from what was published

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of `prune` that it sets."""
        about = {"name", "about", "paper", "notes"}
        return self.model_dump(exclude=about, exclude_none=True)


def names() -> list[str]:
    """List the recipes for budgets."""
    return sorted(_files())


def rows() -> list[dict[str, str]]:
    """Describe every recipe for budgets in one row."""
    found = [load(name) for name in names()]
    return [{"recipe": r.name, "model": "any", "task": "any, with a budget", "about": r.about} for r in found]


def load(name: str | Path) -> BudgetRecipe:
    """Return a recipe by its name, or by the path of a TOML file."""
    path = Path(name) if str(name).endswith(".toml") else _files().get(str(name))
    if path is None:
        raise UnknownNameError(
            "recipe for a budget", str(name), names(), "recipe", "Or the path of a TOML file."
        )
    with reading(path, "a recipe in TOML"):
        raw = {"name": path.stem, **tomllib.loads(path.read_text(encoding="utf-8"))}
        try:
            return BudgetRecipe.model_validate_json(json.dumps(raw, default=str))
        except ValidationError as error:
            found = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise ValueError("; ".join(found)) from None


def fill(name: str, given: Mapping[str, Any], budgets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of `prune` with those of a recipe where nothing is given."""
    recipe = load(name)
    if all(value is None for value in (*budgets.values(), given.get("tolerance"))):
        raise InvalidValueError("`recipe` is for a budget: give `macs`, `params`, `size`…", "recipe")
    criterion = recipe.method.partition(":")[0]
    if criterion.endswith(".py"):
        raise InvalidValueError(
            f"the recipe {recipe.name} names a Python file, {criterion}, which would be run. Read it first, "
            "and give it as `method`",
            "recipe",
        )
    own = {key: value for key, value in recipe.keywords().items() if given.get(key) in (None, "auto")}
    return {**given, **own}


def _files() -> dict[str, Path]:
    return {path.stem: path for path in FOLDER.glob("*/budgets/*.toml")}
