"""Methods: a criterion, its options, what competes with what, and when it is scored again.

gnorm   gnorm:static   gnorm:reverse   gnorm:objective=loss   entropy:form=C:reverse   taylor:step=4
random:25   random:25:every=6   magnitude:scope=layer   wanda:scope=2:4   ./mine.py:static
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import criteria
from ..architectures.sites import ALSO, also_in_order, check_target
from ..core.errors import InvalidValueError, UnknownNameError
from ..criteria import Criterion
from ..io.files import digest
from ..selection.scopes import ROW, groups_of

MOST_TRIALS = 10_000
AUTO = "auto"  # as many units a step as is safe: selection/pace.py
MODIFIERS = ("static", "greedy", "reverse", "every=N", "step=N", "scope=NAME", "TRIALS", "OPTION=VALUE")
WORD = re.compile(r"(?:scope|sequential)=\d+:\d+|[^:]+")
DEFAULTS = {
    "heads": ("gnorm", "gnorm:static", "entropy", "entropy:reverse", "gnorm:reverse", "taylor", "random:25"),
    "neurons": ("taylor:static", "fisher:static", "magnitude", "random:5"),
    "slots": ("taylor:static", "fisher:static", "magnitude", "random:5"),
    "layers": ("taylor", "fisher", "kl", "influence", "random:5"),
    **dict.fromkeys(("attention", "ffn", "attention,ffn"), ("taylor", "fisher", "kl", "random:5")),
    "weights": ("magnitude", "magnitude:scope=layer", "wanda", "fisher", "snip", "grasp", "obd", "random"),
}
TRAINED_DEFAULTS = {"weights": ("movement",)}  # added where a comparison trains


def parse_target(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the target, and what is pruned with weights outside the blocks: `weights+embeddings+head`."""
    target, *also = text.split("+")
    words = target.split(",")
    for word in words:
        check_target(word)
    if len(words) > 1 and (not set(words) <= {"attention", "ffn"} or len(set(words)) < len(words)):
        raise InvalidValueError(
            f"one target, or attention,ffn; heads,neurons are pruned together to a budget; got {target!r}",
            "target",
        )
    for word in also:
        if word not in ALSO:
            raise UnknownNameError(f"part of {text}:", word, ALSO, "target")
    if also and target != "weights":
        raise InvalidValueError(f"{', '.join(also)} can be pruned with weights, not with {target}", "target")
    return target, also_in_order(also)


@dataclass(frozen=True)
class Method:
    """How units are scored and removed."""

    label: str  # as written: it names the method everywhere
    criterion: str
    options: dict[str, Any] = field(default_factory=dict)
    scope: str = "global"
    rescore: bool = False
    step: int | str = 1  # units removed between two scorings, or "auto"
    every: int | None = None  # units removed between two measurements
    reverse: bool = False
    trials: int | None = None  # of a random order; None: there is one order

    @property
    def loaded(self) -> Criterion:
        return criteria.load(self.criterion)

    @property
    def learned(self) -> bool:
        """Whether its scores are learned during training."""
        return bool(self.loaded.learned)

    @property
    def reads_labels(self) -> bool:
        """Whether its scores read the labels of calibration examples."""
        return self.loaded.needs_labels or bool(self.options.get("labels"))

    @property
    def repairs(self) -> bool:
        """Whether the kept weights are updated in closed form to make up for the removed ones."""
        return criteria.repairs(self.loaded, self.scope)

    @property
    def key(self) -> str:
        """Name the scores of the unpruned model: methods with the same key share them."""
        options = ",".join(f"{k}={v}" for k, v in sorted(self.options.items()))
        return f"{self.criterion}({options}){self._code()}"

    def _code(self) -> str:
        """Digest of a criterion that is a file of the user; empty for those of the toolkit."""
        return digest(Path(self.criterion).read_bytes()) if self.criterion.endswith(".py") else ""

    def numbers(self) -> list[int | None]:
        """The trials to run."""
        return [None] if self.trials is None else list(range(self.trials))

    def for_trial(self, trial: int | None, seed: int) -> Method:
        """Return the method with the options of one trial: a random order has a seed of its own."""
        if "seed" not in self.loaded.options:
            return self
        return replace(self, options={**self.options, "seed": self.options.get("seed", seed) + (trial or 0)})

    def settings(self) -> dict[str, Any]:
        """Everything that decides its rows, and how its curve is drawn."""
        out = {name: value for name, value in asdict(self).items() if name != "label"}
        if code := self._code():
            out["code"] = code
        if self.repairs:
            out["repaired"] = True
        found = self.loaded
        return out | {"unit": found.unit, "colour": found.colour, "marker": found.marker}


def parse_methods(
    methods: str | Sequence[str | Method] | None,
    target: str,
    *,
    trained: bool = False,
    also: Sequence[str] = (),
    step: int | str | None = None,
    every: int | None = None,
) -> list[Method]:
    """Return the methods named in a list or in a text with commas; the target's own if None.

    `step` and `every` are for the methods that name none.
    """
    chosen: Sequence[str | Method]
    if methods is None:
        named = DEFAULTS[target] + (TRAINED_DEFAULTS.get(target, ()) if trained else ())
        chosen = [one for one in named if not _lacks_inputs(criteria.load(one.partition(":")[0]), also)]
    elif isinstance(methods, str):
        chosen = [piece.strip() for piece in methods.split(",") if piece.strip()]
    else:
        chosen = methods
    usual = {name: value for name, value in (("step", step), ("every", every)) if value is not None}
    found = [
        one if isinstance(one, Method) else parse_method(one, target, also=also, usual=usual)
        for one in chosen
    ]
    labels = [method.label for method in found]
    if not found or len(set(labels)) < len(labels):
        raise InvalidValueError(
            f"`methods` names at least one method, each once; got {', '.join(labels) or 'none'}", "methods"
        )
    for method in found:
        check_learned(method, trained)
    return found


def check_learned(method: Method, trained: bool) -> None:
    """Raise if scores are to be learned without a training, or with options of the one-shot criterion."""
    if method.learned and (not trained or method.options):
        raise InvalidValueError(
            f"{method.label} learns its scores while it trains: `epochs` must be at least 1, and it takes no "
            "options",
            "method" if trained else "epochs",
        )


def _lacks_inputs(criterion: Criterion, also: Sequence[str]) -> bool:
    return criterion.reads_inputs and bool({"embeddings", "norms"} & set(also))


def parse_method(
    label: str,
    target: str,
    *,
    scope: str | None = None,
    also: Sequence[str] = (),
    usual: Mapping[str, int | str] | None = None,
) -> Method:
    """Return the method that a text such as "gnorm:static" names."""
    name, *words = WORD.findall(label) or [""]
    criterion = criteria.load(name)
    if _lacks_inputs(criterion, also):
        raise InvalidValueError(
            f"{name} needs the inputs of a matrix, which embeddings and norms do not have", "target"
        )
    for one in target.split(","):
        if one not in criterion.targets:
            raise InvalidValueError(
                f"{name} scores {' and '.join(criterion.targets)}, not {one}. For {one}: "
                f"{', '.join(criteria.names(one))}",
                "method",
            )
    units = target != "weights"
    settings: dict[str, Any] = {
        "rescore": units and criterion.rescored,
        "scope": "global" if units else criterion.scope,
        **{key: value if value == AUTO else _count(str(value), key) for key, value in (usual or {}).items()},
    }
    if units and "seed" in criterion.options:  # drawn anew in every trial
        settings["trials"] = 1
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key == "scope":
            settings["scope"] = value
        elif equals and key in ("step", "every"):
            settings[key] = value if (key, value) == ("step", AUTO) else _count(value, word)
        elif equals:
            options[key] = parse_value(value)
        elif word.isdecimal():
            settings["trials"] = _count(word, f"{name}:{word}", MOST_TRIALS)
        elif word in ("static", "greedy"):
            settings["rescore"] = word == "greedy"
        elif word == "reverse":
            settings["reverse"] = True
        else:
            raise UnknownNameError(f"modifier of {label}:", word, MODIFIERS, "method")
    if scope is not None:
        settings["scope"] = scope
    _check(label, name, criterion, settings, options, units)
    method = Method(label, name, options, **settings)
    if not method.rescore:
        return replace(method, step=1)
    # With steps of its own it is measured wherever it is scored.
    return replace(method, every=None) if method.step == AUTO else method


def _check(
    label: str,
    name: str,
    criterion: Criterion,
    settings: dict[str, Any],
    options: dict[str, Any],
    units: bool,
) -> None:
    groups_of(settings["scope"])  # raises for an unknown scope
    for key in options:
        if key not in criterion.options:
            raise UnknownNameError(f"option of {name}:", key, criterion.options, "method")
    criteria.check_options(criterion, options)
    if units and (groups_of(settings["scope"]) or settings["scope"] == ROW):
        raise InvalidValueError(f"{label}: heads and neurons have the scopes global and layer", "scope")
    stepwise = [word for word in ("step", "every") if word in settings] + ["greedy"] * settings["rescore"]
    if not units and stepwise:
        raise InvalidValueError(
            f"{label}: {stepwise[0]} is for heads and neurons, which are removed one after the other",
            "method",
        )
    if "seed" not in criterion.options and "trials" in settings:
        raise InvalidValueError(f"{label}: {name} gives the same order in every trial", "method")
    every, step = settings.get("every", 0), settings.get("step", 1)
    if settings["rescore"] and step != AUTO and every % step:
        raise InvalidValueError(f"{label}: every must be a multiple of step", "method")


def _count(text: str, word: str, most: int = 10**9) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20) or not 1 <= int(text) <= most:
        raise InvalidValueError(f"{word}: the number must be a whole one from 1 to {most}", "method")
    return int(text)


def parse_value(text: str) -> bool | int | float | str | list[bool | int | float | str]:
    """Return a flag, a number, a list of these between brackets, or the text itself.

    >>> parse_value("[0.8, 0.5, 0]")
    [0.8, 0.5, 0]
    """
    if text.startswith("[") and text.endswith("]") and "[" not in text[1:]:
        return [_parse_one(piece.strip()) for piece in text[1:-1].split(",") if piece.strip()]
    return _parse_one(text)


def _parse_one(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for convert in (int, float) if text.isascii() and "_" not in text else ():
        try:
            return convert(text)
        except ValueError:
            pass
    return text
