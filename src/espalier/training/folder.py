"""The folder of a training: begun, interrupted or finished, and never mixed up."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..core.errors import EspalierError, differences
from ..core.log import log
from ..io.atomic import RECORD
from ..io.json_file import read_json, write_json
from ..storage.save import save
from .checkpoint import read_state, room, state_file

FINGERPRINTS = ("fingerprint", "teacher_fingerprint")


def standing(
    folder: Path, settings: Mapping[str, Any], fresh: bool, accelerator: Any
) -> dict[str, Any] | None:
    """The history if all is done already, None if something is to do, an error if it must not be done."""
    state, record = state_file(folder), folder / RECORD
    if folder.exists() and not folder.is_dir():
        raise EspalierError(f"{folder} is a file; give the name of a folder")
    ours = state.parent.is_dir() or "settings" in (read_json(record) if record.exists() else {})
    if not ours and folder.is_dir() and any(folder.iterdir()):
        raise EspalierError(f"{folder} holds something else than a training; choose another name")
    if not fresh and state.exists():
        _compare(folder, "an interrupted", read_state(state)[0].get("settings"), settings)
    elif not fresh and record.exists():
        found = read_json(record)
        _compare(folder, "a finished", found.get("settings"), settings)
        return dict(found["history"])
    accelerator.wait_for_everyone()  # nobody changes the folder before everybody has looked
    if accelerator.is_main_process:
        with room(folder):  # better found out now than after the first minute
            state.parent.mkdir(parents=True, exist_ok=True)
            if fresh:
                _forget(folder)
    accelerator.wait_for_everyone()
    return None


def _compare(folder: Path, what: str, then: Any, now: Mapping[str, Any]) -> None:
    then, now = (then if isinstance(then, dict) else {}), dict(now)
    if "fingerprint" not in then and not differences(then, _unmarked(now)):
        log.warning(
            "%s holds %s training of an older espalier, which did not note the weights it began with. It is "
            "taken for one of this model; if the model has changed since, start over with --fresh",
            folder,
            what,
        )
        return
    differ = differences(then, now)
    if differ:
        others = {n for n in FINGERPRINTS if then.get(n) != now.get(n) and n in then and n in now}
        who = {"fingerprint": "the model to train", "teacher_fingerprint": "the teacher"}
        hint = "".join(f". {who[n].capitalize()} has other weights than then" for n in sorted(others))
        raise EspalierError(
            f"{folder} holds {what} training with other settings: {differ}{hint}. Type those, choose "
            "another folder, or start over with --fresh (in Python: fresh=True)"
        )


def _unmarked(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in FINGERPRINTS}


def _forget(folder: Path) -> None:
    """No state and no record of before; but the record lists files that the new model may leave over."""
    state, record = state_file(folder), folder / RECORD
    if record.exists():
        os.replace(record, state.with_name(RECORD))
    shutil.rmtree(state.with_name("finished"), ignore_errors=True)
    for file in (state, state.with_suffix(".part")):
        file.unlink(missing_ok=True)


def finish(model: Any, tokenizer: Any, folder: Path, about: Mapping[str, Any]) -> None:
    """Put the model into its folder file by file, the record last; only then the state may go."""
    import accelerate
    import transformers

    versions = {"espalier": __version__, "torch": torch.__version__}
    versions |= {"transformers": transformers.__version__, "accelerate": accelerate.__version__}
    inside = state_file(folder).with_name("finished")
    with room(folder):
        shutil.rmtree(inside, ignore_errors=True)
        save(model, inside, tokenizer=tokenizer, origin=about["origin"])
        new = {RECORD, *(file.name for file in inside.iterdir())}
        write_json(inside / RECORD, {**about, "versions": versions, "files": sorted(new)})
        for before in (folder / RECORD, state_file(folder).with_name(RECORD)):
            files = read_json(before).get("files", []) if before.exists() else []
            for old in set(map(str, files)) - new:  # shards and code of a training before this one
                (folder / Path(old).name).unlink(missing_ok=True)
        for name in sorted(new, key=lambda name: name == RECORD):
            os.replace(inside / name, folder / name)
        shutil.rmtree(inside.parent)
