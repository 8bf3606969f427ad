"""The folder of a training, and the state in it: new, interrupted or finished. Trainings are never mixed.

A state is weights, moments and a step in one safetensors file, written completely or not at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..core.errors import ConflictError, EspalierError, FolderError, FormatError, differences
from ..core.terminal import log
from ..core.types import PreTrainedModel, PreTrainedTokenizerBase
from ..engine.dtypes import in_dtype
from ..io.files import fingerprint_weights, make_folder, read_json, sync, write_file, write_json
from ..io.paths import (
    CONFIG,
    TRAINING_BEFORE,
    TRAINING_RECORD,
    TRAINING_RESULT,
    TRAINING_STATE,
    TRAINING_STATE_FOLDER,
    TRAINING_STOP,
)
from ..storage.save import save

if TYPE_CHECKING:
    from accelerate import Accelerator

FINGERPRINTS = {"fingerprint": "The model to train", "teacher_fingerprint": "The teacher"}
# settings as trainings before version 2 wrote them
OLD_SETTINGS = {"batch": "batch_size", "decay": "weight_decay", "length": "max_length", "rate": "lr"}
OLD_SETTINGS |= {"regime": "callback", "by": "method", "keep": "remove", "every": "mask_interval"}
OLD_SETTINGS |= {
    "straight": "ste",
    "score_rate": "score_lr",
    "soft": "soft_weight",
    "hidden": "hidden_weight",
}
STATE_VERSION = 2
OLD_TENSORS = {"regime/behind/": "callback/latent/", "regime/": "callback/"}  # of version 1


def open_folder(
    folder: Path, settings: Mapping[str, Any], overwrite: bool, accelerator: Accelerator
) -> dict[str, Any] | None:
    """Return the history of a finished training with these settings; else prepare the folder for steps."""
    state, record = state_file(folder), folder / TRAINING_RECORD
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file; `folder` must name a folder", folder)
    found = read_json(record) if record.exists() else {}
    ours = state.parent.is_dir() or "settings" in found
    if not ours and folder.is_dir() and any(folder.iterdir()):
        raise FolderError(f"{folder} holds something else than a training; choose another `folder`", folder)
    if not overwrite and state.exists():
        before = read_state(state)[0].get("settings")
        _check_same(folder, "an interrupted", *map(_steps_of, (before, settings)))
    elif not overwrite and record.exists() and not state.with_name(TRAINING_BEFORE).exists():
        _check_same(folder, "a finished", found.get("settings"), settings)
        return dict(found["history"])
    accelerator.wait_for_everyone()  # no process changes the folder before every process has read it
    if accelerator.is_main_process:
        with explain_unwritable(folder):  # better now than after the first minute
            state.parent.mkdir(parents=True, exist_ok=True)
            set_aside(folder)
            for old in (state, state.with_name(TRAINING_STOP)) if overwrite else ():
                old.unlink(missing_ok=True)
    accelerator.wait_for_everyone()
    return None


def set_aside(folder: Path) -> None:
    """Move the model of an earlier training in the folder out of the way: nobody takes it for the new one.

    What a killed call has not moved is moved by the next one.
    """
    aside = state_file(folder).with_name(TRAINING_BEFORE)
    records = (
        folder / TRAINING_RECORD,
        state_file(folder).with_name(TRAINING_RECORD),
        aside / TRAINING_RECORD,
    )
    found = next((record for record in records if record.exists()), None)
    if found is None:
        return
    make_folder(aside)
    files = {Path(str(name)).name for name in read_json(found).get("files", [])} - {CONFIG, TRAINING_RECORD}
    for name in (CONFIG, *sorted(files)):  # the config first: without it there is no model
        if (folder / name).is_file():
            os.replace(folder / name, aside / name)
    os.replace(found, aside / TRAINING_RECORD)  # last: it lists the others
    sync(aside)
    sync(folder)


def starting_fingerprint(model: nn.Module, folder: Path, overwrite: bool) -> str:
    """Return the fingerprint of the weights that a training in the folder starts from.

    If the folder's own training left the model with these weights, those it had started from count: a model
    that was interrupted, or trained, in this program is still recognised.
    """
    now, found = fingerprint_weights(model), {}
    stopped, record = state_file(folder).with_name(TRAINING_STOP), folder / TRAINING_RECORD
    if state_file(folder).exists():
        found = read_json(stopped) if stopped.exists() else {}
    elif record.exists():
        about = read_json(record)
        found = {"start": about.get("settings", {}).get("fingerprint"), "end": about.get("fingerprint")}
    return str(found["start"]) if not overwrite and found.get("end") == now else now


def note_stop(model: nn.Module, folder: Path, start: str) -> None:
    """Write down with which weights an interrupted training left the model, if there is a state."""
    if state_file(folder).exists():
        with suppress(EspalierError):
            end = fingerprint_weights(model)
            write_json(state_file(folder).with_name(TRAINING_STOP), {"start": start, "end": end})


def finish(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    about: Mapping[str, Any],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Put the model into its folder file by file, the record last, and then remove the state."""
    import accelerate
    import transformers

    versions = {"espalier": __version__, "torch": torch.__version__}
    versions |= {"transformers": transformers.__version__, "accelerate": accelerate.__version__}
    inside = state_file(folder).with_name(TRAINING_RESULT)
    with explain_unwritable(folder):
        shutil.rmtree(inside, ignore_errors=True)
        with nullcontext() if dtype == torch.float32 else in_dtype(model, dtype):
            save(model, inside, tokenizer=tokenizer, origin=about["origin"], output="train")
        new = {TRAINING_RECORD, *(file.name for file in inside.iterdir())}
        facts = {"versions": versions, "fingerprint": fingerprint_weights(model), "files": sorted(new)}
        write_json(inside / TRAINING_RECORD, {**about, **facts})
        set_aside(folder)
        shutil.rmtree(inside.with_name(TRAINING_BEFORE), ignore_errors=True)
        last = [CONFIG, TRAINING_RECORD]  # without them there is no model yet
        for name in (*sorted(new - set(last)), *last):
            _put(inside / name, folder / name)
        sync(folder)
        shutil.rmtree(inside.parent)


def _put(source: Path, target: Path) -> None:
    """Move a file, or a folder of modules, also where an earlier training left one of that name."""
    if source.is_dir() and target.is_dir() and not target.is_symlink():
        for item in sorted(source.iterdir()):
            _put(item, target / item.name)
    else:
        os.replace(source, target)


def _steps_of(settings: Any) -> Any:
    """Return the settings that steps depend on: the dtype of the file may still be changed."""
    if not isinstance(settings, Mapping):
        return settings
    return {name: value for name, value in settings.items() if name != "dtype"}


def _check_same(folder: Path, what: str, before: Any, now: Mapping[str, Any]) -> None:
    before, now = _with_new_names(before if isinstance(before, dict) else {}), dict(now)
    unmarked = {name: value for name, value in now.items() if name not in FINGERPRINTS}
    if "fingerprint" not in before and not differences(before, unmarked):
        message = "%s holds %s training that did not note the weights it started from. It is taken for one "
        message += "of this model; if the model has changed since, start over with `overwrite`"
        log.warning(message, folder, what)
    elif differ := differences(before, now):
        changed = [who for n, who in FINGERPRINTS.items() if n in before and n in now and before[n] != now[n]]
        hint = "".join(f". {who} has other weights than then" for who in changed)
        advice = "Use those settings, choose another `folder`, or start over with `overwrite`"
        message = f"{folder} holds {what} training with other settings: {differ}{hint}. {advice}"
        raise ConflictError(message, folder, differ)


def _with_new_names(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an older training in present names, with fractions removed instead of kept."""
    if "rate" not in settings:
        return settings
    values = {n: round(1 - v, 12) if n in ("keep", "initial") else v for n, v in settings.items()}
    scope = {"scope": "global"} if "keep" in settings else {}
    return scope | {OLD_SETTINGS.get(name, name): value for name, value in values.items()}


def state_file(folder: Path) -> Path:
    """Return where the state of a training in this folder is."""
    return folder / TRAINING_STATE_FOLDER / TRAINING_STATE


def write_state(file: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write a state; the one before stays until this one is complete."""
    from safetensors.torch import save_file

    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    about = {"version": STATE_VERSION, **about, "checksum": checksum(tensors)}
    with explain_unwritable(file.parent.parent), write_file(file) as place:
        save_file(tensors, place, {"espalier": json.dumps(about)})


def read_state(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the description of a state, such as its step, and its tensors."""
    from safetensors import safe_open

    with explain_unusable(file):
        with safe_open(file, "pt") as state:
            about = json.loads(state.metadata()["espalier"])
            tensors = {name: state.get_tensor(name) for name in state.keys()}  # noqa: SIM118
        if about["version"] > STATE_VERSION:
            raise ValueError("it was written by a newer espalier")
        if about["checksum"] != checksum(tensors):
            raise ValueError("its checksum is wrong")
        old = re.compile("|".join(OLD_TENSORS))
        return about, {old.sub(lambda m: OLD_TENSORS[m[0]], name, count=1): t for name, t in tensors.items()}


@contextmanager
def explain_unusable(file: Path) -> Iterator[None]:
    """Raise FormatError for whatever a damaged state raises."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RuntimeError) as error:
        message = f"the state {file} cannot be used: {error}. Start over with `overwrite`"
        raise FormatError(message, file) from None


@contextmanager
def explain_unwritable(folder: Path) -> Iterator[None]:
    """Raise FolderError for whatever a full disk raises."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, EspalierError) as error:
        cause = error.__cause__ or error
        why = getattr(cause, "strerror", None) or cause
        advice = "Make room, or choose another `folder`"
        if state_file(folder).exists():
            advice = "Make room and run the same again: it resumes from the last state, which is kept"
        raise FolderError(f"cannot write {folder}: {why}. {advice}", folder) from error


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """Return a checksum of the values, in the order of their names."""
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].flatten().view(torch.uint8).numpy().data, total)
    return total


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, tied ones once."""
    named = model.state_dict(keep_vars=True).items()
    return dict({id(t): (name, t) for name, t in named}.values())
