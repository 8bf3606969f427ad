"""Upload a folder with a model to the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.errors import EspalierError, FolderError, InvalidValueError, UnsupportedError
from ..core.terminal import log
from ..io.hub import is_reachable
from ..io.paths import CARD, CONFIG, MANIFEST, ROWS, TRAINING_LOGS, TRAINING_STATE_FOLDER

# records of this machine, and logs
LEFT_OUT = [MANIFEST, f"{TRAINING_STATE_FOLDER}/*", f"{TRAINING_LOGS}/*", ".lock", ".cache/*", ".git/*"]


def push(folder: str | Path, name: str, *, private: bool = False) -> str:
    """Upload the model in a folder as `owner/name`, or `name` of the own account; return its address.

    The repository is created if there is none; files of the same names in it are replaced, as one commit.

    >>> espalier.push("small", "me/small")
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.utils import HFValidationError, validate_repo_id  # type: ignore[attr-defined]

    place = Path(folder)
    _check_model(place)
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise InvalidValueError(f"`name` must be owner/name as on the hub: {error}", "name") from None
    if get_token() is None:
        raise UnsupportedError("there is no token for the hub. Log in with hf auth login, or set HF_TOKEN")
    if not is_reachable():
        raise UnsupportedError("the hub cannot be reached, or HF_HUB_OFFLINE is set: nothing was uploaded")
    if not (place / CARD).is_file():
        log.warning("%s has no %s: the hub will show the model without a card", place, CARD)
    api: Any = HfApi()
    try:
        repo = api.create_repo(name, private=private, exist_ok=True)
        if private and not api.repo_info(repo.repo_id).private:
            raise UnsupportedError(f"{repo.repo_id} exists and is public: nothing was uploaded")
        message = "Upload a model made by espalier"
        api.upload_folder(
            repo_id=repo.repo_id, folder_path=place, commit_message=message, ignore_patterns=LEFT_OUT
        )
    except EspalierError:
        raise
    except Exception as error:  # the hub, the network and the account each fail in their own way
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnsupportedError(f"the hub refused {name}: {reason}") from error
    return str(repo)


def _check_model(folder: Path) -> None:
    if (folder / TRAINING_STATE_FOLDER).exists():
        raise FolderError(f"{folder} holds an unfinished training; finish it first", folder)
    weights = [*folder.glob("*.safetensors")] if folder.is_dir() else []
    if not (folder / CONFIG).is_file() or not weights:
        run = " but a comparison" if (folder / ROWS).is_file() else ""
        raise FolderError(f"{folder} holds no model{run}: no {CONFIG} with weights beside it", folder)
