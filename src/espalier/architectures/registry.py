"""The known architecture tables, by model type: those in families/, and those registered since."""

import re
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from ..core.errors import FormatError, UnknownNameError, UnsupportedError
from ..core.types import PreTrainedModel
from ..io import plugin
from . import families
from .layout import formula
from .table import Architecture


@cache
def architectures() -> dict[str, Architecture]:
    """Return every known model type and its table."""
    known: dict[str, Architecture] = {}
    for info in sorted(iter_modules(families.__path__), key=lambda info: info.name):
        table: Architecture = import_module(f"{families.__name__}.{info.name}").ARCHITECTURE
        known.update(dict.fromkeys(table.models, table))
    return known


def register_architecture(architecture: Architecture) -> Architecture:
    """Add a table to those that this process knows, and return it."""
    architectures().update(dict.fromkeys(architecture.models, architecture))
    return architecture


def load_table(file: str) -> Architecture:
    """Return the `ARCHITECTURE` of a Python file."""
    table = getattr(plugin.load(file), "ARCHITECTURE", None)
    if not isinstance(table, Architecture):
        raise FormatError(f"{file} defines no ARCHITECTURE = Architecture(...)", file)
    return table


def architecture_of(model: PreTrainedModel) -> Architecture:
    """Return the table of a model."""
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if not isinstance(model_type, str):
        raise UnsupportedError(
            f"{type(model).__name__} is not a transformers model: it has no config.model_type"
        )
    known = architectures()
    if model_type not in known:
        more = "To add it, see docs/add-an-architecture.md."
        raise UnknownNameError("model type", model_type, sorted(known), more=more)
    return known[model_type]


def evaluate_formula(text: str, config: Any) -> int:
    """Return the value of a formula over the entries of a config."""
    return formula(text, {name: getattr(config, name) for name in re.findall(r"[a-z]\w*", text)})


def position_limit(model: PreTrainedModel) -> int | None:
    """Return how many tokens the model has positions for, or None if its config gives no limit."""
    config = model.config.get_text_config()
    rows = getattr(config, "max_position_embeddings", None)
    if not rows:
        return None
    table = architectures().get(config.model_type)
    offset = table.position_offset.get(config.model_type, "0") if table else "0"
    return int(rows) - evaluate_formula(offset, config)
