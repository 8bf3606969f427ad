"""Options that belong together: verbs take them as one thing, people type them one by one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from . import options as given


@dataclass(frozen=True)
class Data:
    """How the examples and the model are read."""

    length: given.Length = 128
    text: given.Text = None
    pair: given.Pair = None
    label: given.Label = None
    seed: given.Seed = 0
    split_seed: given.SplitSeed = 0
    threads: given.Threads = None
    trust_remote_code: given.Trust = False

    @property
    def columns(self) -> dict[str, str | None]:
        return {"text": self.text, "pair": self.pair, "label": self.label}


@dataclass(frozen=True)
class Measuring:
    """How many examples are measured on."""

    validate: given.Validate = 1000
    test: given.Test = 5000


@dataclass(frozen=True)
class Engine:
    """How the work is done; none of it changes what comes out, but for rounding."""

    processes: given.Processes = None
    precision: given.Precision = "fp32"
    cache: given.Cache = 2.0


DATA, MEASURING, ENGINE = Data(), Measuring(), Engine()


def spread(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb whose parameters that are groups are typed field by field."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(verb).parameters.values():
        if own.name in groups:
            parameters += map(_parameter, *_typed_fields(groups[own.name]))
        else:
            parameters.append(own.replace(annotation=hints[own.name], kind=own.KEYWORD_ONLY))

    @functools.wraps(verb)
    def typed(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        verb(**given, **made)

    # the two places where typer looks
    typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    typed.__annotations__ = {p.name: p.annotation for p in parameters}
    del typed.__wrapped__  # type: ignore[attr-defined]  # or the hints would be the verb's
    return typed


def said_of(group: Any) -> list[str]:
    """The options of a group that are not as they would be if nobody had said anything."""
    return [f"--{f.name}" for f in fields(group) if getattr(group, f.name) != f.default]


def _typed_fields(group: Any) -> tuple[list[Any], list[Any]]:
    hints = get_type_hints(group, include_extras=True)
    return list(fields(group)), [hints[field.name] for field in fields(group)]


def _parameter(field: Any, hint: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.default is MISSING else field.default
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
