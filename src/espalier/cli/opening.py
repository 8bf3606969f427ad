"""A model and a task from what was typed, with a word on what is going on."""

from __future__ import annotations

from typing import Any

from .show import console, plain, say


def opened(
    model: str | None,
    task: str | None,
    *,
    kind: str,
    calibrate: int,
    validate: int | None,
    test: int | None,
    length: int,
    columns: dict[str, str | None],
    seed: int,
    split_seed: int,
    threads: int | None,
    trust_remote_code: bool,
    batch: int | None = None,
    recipe: Any = None,
    faithful: bool = False,
    scored: bool = True,
) -> Any:
    """The bench: of a model and a task, or of a recipe, whose model may be replaced."""
    from pathlib import Path

    import torch

    from ..errors import EspalierError
    from ..recipes.portions import task_of
    from ..workbench import bench, open_model, open_task, tell_notes, warn_of_another_split

    if threads:
        torch.set_num_threads(threads)
    screen = console(stderr=True)
    own = None
    if recipe is not None:
        with screen.status(f"reading {plain(recipe.task)}"):
            found, own = task_of(recipe, faithful=faithful)
        tell_notes(found)
        model = model or recipe.model
        calibrate, length, seed = len(found.train), recipe.length, recipe.seed
        batch = recipe.mode(faithful).batch_size
    elif model is None or task is None:
        raise EspalierError(
            "give a model and a task: espalier compare MODEL --task TASK, or a recipe: --recipe NAME"
        )
    else:
        with screen.status(f"reading {plain(task)}"):
            found = open_task(task, seed=split_seed, **columns)
        found = found.sized(validation=validate, test=test, seed=seed)
        warn_of_another_split(model, found.name, split_seed)
    with screen.status(f"loading {plain(model)}"):
        loaded, tokenizer = open_model(model, found, trust_remote_code=trust_remote_code)
    name = Path(model).resolve().name if Path(model).exists() else model
    if recipe is not None and recipe.published is not None and model == recipe.model:
        name = recipe.published.name
    made = bench(
        name,
        loaded,
        tokenizer,
        found,
        kind=kind,
        calibration=calibrate,
        length=length,
        seed=seed,
        batch=batch,
        most=validate,
        own=own,
    )
    units = sum(site.units for site in made.sites)
    sizes = [sum(map(len, b.places)) for b in (made.calibration, made.validation, made.test)]
    if scored:
        say(
            f"{name}: {units} {kind}; {found.name}: scored on {sizes[0]}, chosen on {sizes[1]}, "
            f"reported on {sizes[2]} examples"
        )
    return made
