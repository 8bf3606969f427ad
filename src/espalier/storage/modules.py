"""What sentence-transformers keeps beside a model: its modules (pooling, dense layers, normalisation)."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..core.errors import FormatError, UnsupportedError
from ..core.strict_json import parse_json
from ..core.terminal import log
from ..engine.embeddings import ACTIVATIONS, POOLINGS, Dense, Embedder
from ..io.files import read_json, reading
from ..io.hub import hub_access
from ..io.paths import CONFIG, MODULE_SETTINGS, MODULES, PICKLED, WEIGHTS

PROMPTS, LENGTH = MODULE_SETTINGS
LARGEST = 2**28  # bytes of a file that is copied: a dense layer of 8,192 by 8,192 at most
WEIGHTED = {  # modules after the model that do not load without their weights
    *("CNN", "Dense", "LayerNorm", "LSTM", "SparseAutoEncoder", "StaticEmbedding", "WeightedLayerPooling"),
    *("WordEmbeddings", "WordWeights"),
}
POOLED = "sentence_embedding"  # what the modules after the pooling read and write
OLD_POOLINGS = {  # how sentence-transformers wrote them before it had one name for each
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def has_modules(source: str | Path) -> bool:
    """Whether sentence-transformers wrote a list of modules beside a model."""
    return _find(source, MODULES) is not None


def read_embedder(source: str | Path) -> Embedder:
    """Return how a model's outputs become embeddings; without a list of modules, by the mean of tokens."""
    listed = _find(source, MODULES) if str(source) else None
    if listed is None:
        return Embedder()
    poolings: tuple[str, ...] = ("mean",)
    normalised, dense = False, list[Dense]()
    for kind, path in _modules(listed)[1:]:
        config = _find(source, f"{path}/{CONFIG}")
        if kind == "Normalize":
            normalised = True
        elif kind == "Pooling" and not normalised and not dense:
            poolings = _poolings(config, listed)
        elif kind == "Dense" and not normalised:
            _check_weights(kind, path, dict(_files(source, path, weighted=True)), listed)  # before any work
            dense.append(_dense(config, _find(source, f"{path}/{WEIGHTS}"), listed))
        else:
            raise UnsupportedError(
                f"{listed} lists a module {kind}; embeddings are compared after pooling, dense layers and "
                "normalisation alone, in this order. Prune it by criteria in Python: docs/embeddings.md"
            )
    settings = {name: _settings(source, name) for name in MODULE_SETTINGS}
    named = settings[PROMPTS].get("default_prompt_name")
    prompts = settings[PROMPTS].get("prompts")
    prompt = prompts.get(named) if isinstance(prompts, dict) and isinstance(named, str) else ""
    longest = settings[LENGTH].get("max_seq_length")
    return Embedder(
        poolings,
        normalised,
        str(prompt or ""),
        longest if isinstance(longest, int) and longest > 0 else None,
        tuple(dense),
        settings[LENGTH].get("do_lower_case") is True,
    )


def _poolings(file: Path | None, listed: Path) -> tuple[str, ...]:
    if file is None:
        raise FormatError(f"{listed} lists a pooling whose {CONFIG} is missing", listed)
    config = read_json(file)
    named = config.get("pooling_mode", [name for name, old in OLD_POOLINGS.items() if config.get(old)])
    found = tuple(map(str, named if isinstance(named, list) else [named])) or ("mean",)
    if unknown := [name for name in found if name not in POOLINGS]:
        raise UnsupportedError(f"{file} names the pooling {unknown[0]!r}; known are {', '.join(POOLINGS)}")
    if config.get("include_prompt") is False:
        raise UnsupportedError(f"{file} leaves prompts out of the pooling, which is not supported")
    return found


def _dense(file: Path | None, weights: Path | None, listed: Path) -> Dense:
    """Return a dense layer as its config and its weights say; raise for one that would be another here."""
    if file is None or weights is None:
        missing = CONFIG if file is None else WEIGHTS
        raise FormatError(
            f"{listed} lists a dense layer whose {missing} is missing; save the model again with "
            "sentence-transformers, which writes it",
            listed,
        )
    config = read_json(file)
    place, _, activation = str(config.get("activation_function", "torch.nn.Tanh")).rpartition(".")
    if not place.startswith("torch.") or activation not in ACTIVATIONS:
        raise UnsupportedError(
            f"{file} names the activation {activation!r}; known are {', '.join(ACTIVATIONS)} of torch"
        )
    names = {config.get(f"module_{way}_name") for way in ("input", "output")}
    if config.get("use_residual") or names - {None, POOLED}:
        raise UnsupportedError(
            f"{file} is of a dense layer beside the embedding; supported is one that takes the embedding and "
            "returns it, without a residual"
        )
    from safetensors.torch import load_file

    with reading(weights, "a dense layer", Exception):
        found = load_file(weights)
        weight, bias = found["linear.weight"], found.get("linear.bias")
        if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
            raise ValueError(f"a weight of the shape {tuple(weight.shape)}")
    return Dense(weight, bias, activation)


def _settings(source: str | Path, name: str) -> dict[str, Any]:
    file = _find(source, name)
    return {} if file is None else dict(read_json(file))


def _find(source: str | Path, name: str, *, local: bool = False) -> Path | None:
    """Return a file of a model, in its folder or on the hub; None if there is none.

    `local` looks only at what was loaded from the hub before.
    """
    if Path(source).exists():
        file = Path(source) / name
        return file if file.is_file() else None
    from transformers.utils import cached_file

    whats = ("missing_entries", "connection_errors", "gated_repo")
    how: Any = {f"_raise_exceptions_for_{what}": False for what in whats}
    with nullcontext() if local else hub_access():
        try:
            found = cached_file(str(source), name, local_files_only=local, **how)
        except (OSError, ValueError):  # no such model: said when it is loaded
            return None
    return None if found is None else Path(found)


def _modules(listed: Path) -> list[tuple[str, str]]:
    """Return the class and the folder of each module in a list, in its order."""
    with reading(listed, "a list of modules", Exception):
        found = [
            (str(one.get("type", "")).rpartition(".")[2], str(one["path"]))
            for one in parse_json(listed.read_text(encoding="utf-8"))
        ]
    if any(Path(path).name != path or path == ".." for _, path in found):
        raise FormatError(f"{listed} is damaged: the path of a module is a folder beside it", listed)
    return found


def copy_modules(source: str | Path, place: Path, *, needed: bool = True) -> list[str]:
    """Copy the modules that follow the model, and their settings; return the names of what was copied.

    Only folders inside the source that its list names are copied, and no links but those inside the hub's
    cache; of a model on the hub the list, the settings, and the config and the weights of each module.
    Without the weights of a module the copy could not be loaded: this is an error, or nothing is copied if
    the modules are not `needed`.
    """
    listed = _find(source, MODULES, local=True) if str(source) else None
    if listed is None:
        return []
    modules = [(kind, path) for kind, path in _modules(listed) if path]
    copied: dict[str, Path] = {}
    for kind, name in (*((None, own) for own in (MODULES, *MODULE_SETTINGS)), *modules):
        weighted = kind in WEIGHTED
        found = dict(_files(source, name, weighted))
        try:
            if weighted:
                _check_weights(str(kind), name, found, listed)
        except FormatError as error:
            if needed:
                raise
            log.warning("%s; modules are not copied", error)
            return []
        copied |= found
    for own, file in copied.items():
        target = place / own
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    return list(copied)


def _check_weights(kind: str, name: str, found: Iterable[str], listed: Path) -> None:
    """Raise if a module has no weights among the files that would be copied of it."""
    if not {f"{name}/{WEIGHTS}", f"{name}/{PICKLED}"} & set(found):
        raise FormatError(
            f"{listed} lists a module {kind} whose weights, {name}/{WEIGHTS}, are not there, so that a copy "
            f"could not be loaded. Put them there as a file, no link, of at most {LARGEST >> 20} MiB",
            listed,
        )


def _is_inside(file: Path, source: Path) -> bool:
    """Whether a file is one of this folder: no link, but for those of a snapshot in the hub's cache."""
    snapshots = source.resolve().parent
    cached = snapshots.name == "snapshots" and file.resolve().parent == snapshots.parent / "blobs"
    return cached or not file.is_symlink()


def _files(source: str | Path, name: str, weighted: bool) -> list[tuple[str, Path]]:
    """Return the files under a name, each with its own name below the source.

    Of a model on the hub those that were loaded before, but the weights of a module from there: they are not
    loaded with the model.
    """
    if not Path(source).is_dir():
        names = [name, f"{name}/{CONFIG}"]
        found = [(own, file) for own in names if (file := _find(source, own, local=True)) is not None]
        for own in (f"{name}/{WEIGHTS}", f"{name}/{PICKLED}") if weighted else ():
            if file := _find(source, own):
                return [*found, (own, file)]
        return found
    path = Path(source) / name
    inside = [path] if path.is_file() else sorted(path.glob("*")) if path.is_dir() else []
    if path.is_symlink() and path.is_dir():
        return []
    return [
        (file.relative_to(source).as_posix(), file)
        for file in inside
        if file.is_file() and _is_inside(file, Path(source)) and file.stat().st_size <= LARGEST
    ]
