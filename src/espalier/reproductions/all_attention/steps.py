"""The three steps: train a language model, prune the heads of the trained one by gates, and time the result.

A recipe in TOML has the settings of each. Each step resumes in its folder.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from ...core import distributed
from ...core.errors import UnknownNameError
from ...core.progress import OnProgress, Progress, ignore
from ...evaluation.cost import cost
from ...experiment.latency import measure_models
from ...experiment.pruner import prune_model
from ...experiment.session import TEST, VALIDATION
from ...experiment.trainer import train_model
from ...io.files import reading, write_json
from ...reports import measurement, outcome
from ...reports.outcome import Outcome
from ...storage.load import load as load_model
from ..recipe import Section

FOLDER = Path(__file__).parent
OWN = ("epochs", "batch_size", "lr", "examples")  # options of a training that are no options of its loop
BASELINE, RESULT = "baseline", "result.json"
Table = dict[str, Any]


class Steps(Section):
    """A recipe: the model, its data, and the options of each step as the verbs take them."""

    name: str
    about: str
    model: Table
    train: Table
    prune: Table  # `penalties` is a list: one model each
    data: Table = Field(default_factory=dict)
    measure: Table = Field(default_factory=dict)
    paper: str | None = None
    notes: tuple[str, ...] = ()
    published: Table = Field(default_factory=dict)


def names() -> list[str]:
    """List the recipes of this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def rows() -> list[dict[str, str]]:
    """Describe every recipe in one row."""
    found = [load(name) for name in names()]
    return [
        {"recipe": s.name, "model": str(s.model["type"]), "task": "a corpus of words", "about": s.about}
        for s in found
    ]


def load(name: str | Path) -> Steps:
    """Return a recipe by its name, or by the path of a TOML file."""
    path = Path(name) if str(name).endswith(".toml") else FOLDER / f"{name}.toml"
    if not str(name).endswith(".toml") and str(name) not in names():
        raise UnknownNameError("recipe", name, names(), "recipe", "Or give the path of a TOML file.")
    with reading(path, "a recipe in TOML"):
        try:
            found = Steps.model_validate(
                {"name": path.stem, **tomllib.loads(path.read_text(encoding="utf-8"))}, strict=False
            )
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        missing = [
            key for key, table in (("type", found.model), ("penalties", found.prune)) if key not in table
        ]
        if missing:
            raise ValueError(f"`{missing[0]}` is missing")
        return found


def do_steps(
    recipe: str | Path, task: Any, folder: str | Path, *, on_progress: OnProgress = ignore
) -> Outcome:
    """Do the three steps of a recipe on a corpus of words: train, prune by gates, time what is left.

    The recipe is a name (espalier list recipes) or a TOML file. A killed run resumes: repeat the call.

    >>> espalier.reproduce("all-attention", "wikitext-103", "all-attention")
    """
    facts = run_steps(load(recipe), task, Path(folder), on_progress)
    tables = [outcome.steps_table(facts), *measurement.latency_tables(facts["speed"])]
    return Outcome(facts, tables, facts["notes"])


def run_steps(steps: Steps, task: Any, folder: Path, on_progress: OnProgress) -> dict[str, Any]:
    """Return what was measured, and write it beside the models."""
    baseline = folder / BASELINE
    options: Any = {**steps.data, **steps.model, **steps.train}
    kind = options.pop("type")
    own = {name: options.pop(name) for name in OWN if name in options}
    on_progress(Progress("step 1 of 3: training"))
    train_model(kind, task, baseline, options, on_progress=on_progress, **own)
    pruned = []
    how = {name: value for name, value in steps.prune.items() if name != "penalties"}
    for penalty in steps.prune["penalties"]:
        on_progress(Progress(f"step 2 of 3: pruning with penalty {penalty:g}"))
        place = folder / f"penalty-{penalty:g}"
        asked: Any = {**how, **steps.data, "penalty": penalty, "folder": place, "on_progress": on_progress}
        _, facts, _ = prune_model(str(baseline), task, "gates", {}, **asked)
        pruned.append(_describe(penalty, place, facts))
    on_progress(Progress("step 3 of 3: timing the pruned models"))
    timing = {"max_length": steps.data.get("max_length", 128), **steps.measure}
    speed = measure_models([one["folder"] for one in pruned], str(baseline), **timing)
    facts = {"recipe": steps.name, "notes": list(steps.notes), "pruned": pruned, "speed": speed}
    facts |= {"published": steps.published, "folder": str(folder)}
    if not distributed.rank():
        write_json(folder / RESULT, facts)
    return facts


def _describe(penalty: float, folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Say what is left of a model and what it is worth, beside the model it was made of."""
    found = {"penalty": penalty, "folder": str(folder), "layers": [one["kept"] for one in facts["layers"]]}
    for when in ("before", "after"):
        for split in (VALIDATION, TEST):
            found[f"{split} perplexity {when}"] = facts[when][split]["perplexity"]
    counts = cost(load_model(folder))
    return found | {"heads": counts.heads, "parameters": counts.parameters}
