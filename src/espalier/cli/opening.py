"""A model and a task from what was typed, with a word on what is going on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .groups import ENGINE, Data, Engine, Measuring
from .show import be_quiet, console, plain, say

NOTHING = Measuring(validate=1, test=1)
SAID = {"calibration": "scored on", "validation": "chosen on", "test": "reported on"}


def opened(
    model: str | None,
    task: str | None,
    data: Data,
    measuring: Measuring = NOTHING,
    *,
    kind: str,
    calibrate: int,
    engine: Engine = ENGINE,
    batch: int | None = None,
    recipe: Any = None,
    faithful: bool = False,
    device_map: str | None = None,
    also: tuple[str, ...] = (),
    used: Iterable[str] = SAID,
) -> Any:
    """The bench: of a model and a task, or of a recipe, whose model may be replaced.

    Of the parts only those that are `used` are spoken of.
    """
    import torch

    from ..architectures.table import sites as find_sites
    from ..core import distributed
    from ..core.errors import EspalierError
    from ..engine.precision import check_precision
    from ..experiment.session import (
        bench,
        open_model,
        open_task,
        pruned_before,
        short_name,
        stored_dtype,
        tell_notes,
        warn_of_another_split,
    )
    from ..reproductions.recipes.portions import task_of

    check_precision(engine.precision)
    if model is not None:
        check_holds_model(Path(model))
    if data.threads:
        torch.set_num_threads(data.threads)
    elif distributed.is_launched():
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = distributed.join() if distributed.is_launched() else None
    if distributed.rank():
        be_quiet()
    screen = console(stderr=True)
    own, length, seed = None, data.length, data.seed
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
            found = open_task(task, seed=data.split_seed, **data.columns)
        found = found.sized(validation=measuring.validate, test=measuring.test, seed=seed)
        warn_of_another_split(model, found.name, data.split_seed)
    with screen.status(f"loading {plain(model)}"):
        loaded, tokenizer = open_model(
            model, found, trust_remote_code=data.trust_remote_code, device_map=device_map
        )
        if device_map is None and (device is not None or torch.cuda.is_available()):
            loaded.to(device or "cuda")
    name = short_name(model)
    if recipe is not None and recipe.published is not None and model == recipe.model:
        name = recipe.published.name
    made = bench(
        name,
        loaded,
        tokenizer,
        found,
        target=kind,
        calibration=calibrate,
        length=length,
        seed=seed,
        batch=batch,
        most=measuring.validate,
        own=own,
        precision=engine.precision,
        cache=int(engine.cache * 2**30),
        also=also,
        before=pruned_before(model),
        stored=stored_dtype(model, trust_remote_code=data.trust_remote_code),
    )
    for word in also:
        if len(find_sites(loaded, "weights", **{word: True})) == len(find_sites(loaded, "weights")):
            raise EspalierError(
                f"--also {word}: {name} has none of its own. The head of a language model is often the table "
                "of its embeddings: --also embeddings"
            )
    if engine.precision != "fp32":
        say(f"computing in {made.precision}")
    units = sum(site.units for site in made.sites)
    sizes = {part: sum(map(len, getattr(made, part).places)) for part in used}
    if sizes:
        say(f"{name}: {units} {kind}; {found.name}: {parts_said(sizes)}")
    return made


def parts_said(sizes: Mapping[str, int]) -> str:
    """scored on 256, chosen on 872 examples"""
    return ", ".join(f"{SAID[part]} {n}" for part, n in sizes.items()) + " examples"


def check_output(output: Path, model: str) -> None:
    """What a pruned model may replace: an older one, but not the one it is made of, nor a training's."""
    from ..core.errors import EspalierError
    from ..io.atomic import RECORD, check_replaceable

    if Path(model).exists() and Path(model).resolve() == output.resolve():
        raise EspalierError(f"{output} is the model itself. Choose another folder with -o")
    if (output / RECORD).is_file():
        raise EspalierError(
            f"{output} holds what a training made ({RECORD}), which would be lost. Choose another folder "
            "with -o"
        )
    check_replaceable(output)
    near = next(p for p in (output.resolve(), *output.resolve().parents) if p.exists())
    if not os.access(near, os.W_OK | os.X_OK):
        raise EspalierError(f"cannot write to {near}. Choose another folder with -o")


def check_holds_model(folder: Path) -> None:
    """Folders of espalier that hold no model, or not yet, say so better than transformers would."""
    from ..core.errors import EspalierError
    from ..experiment import manifest
    from ..io.atomic import STATES

    if (folder / "config.json").is_file():
        return
    if (folder / STATES).is_dir():
        raise EspalierError(
            f"{folder} is a training that is not finished. Type its command again, and it goes on"
        )
    if not (folder / "rows.jsonl").is_file():
        return
    if manifest.told(folder, "kind") == "weights":
        raise EspalierError(
            f"{folder} is a study of single weights; it holds numbers (espalier report {folder}) and no "
            "weights. Make the model first: espalier prune MODEL --task TASK --what weights --by CRITERION "
            "--keep 0.5 -o sparse"
        )
    raise EspalierError(
        f"{folder} is a comparison; it holds orders of removal and no weights. Make the model first: "
        f"espalier prune MODEL --task TASK --by STRATEGY --from {folder} --within 0.01 -o small"
    )
