"""Errors raised on purpose. The type says what kind of mistake it is; fields carry the facts.

A message says what was seen, what is valid and what to do. It names parameters in backticks (`remove`), never
command-line flags: the command line translates them. No heavy imports: the command line starts with this.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any


class EspalierError(ValueError):
    """Base of every error that the toolkit raises on purpose."""


class InvalidValueError(EspalierError):
    """A value outside what a parameter accepts, or two parameters that exclude each other."""

    def __init__(self, message: str, parameter: str | None = None):
        super().__init__(message)
        self.parameter = parameter


class UnknownNameError(InvalidValueError):
    """A name that is not in a registry, a model or a table. Lists what there is and the nearest match."""

    def __init__(
        self, what: str, name: object, known: Iterable[str], parameter: str | None = None, more: str = ""
    ):
        self.name, self.known = str(name), [str(one) for one in known]
        self.nearest = next(iter(get_close_matches(self.name, self.known, n=1)), None)
        listed = ", ".join(self.known[:40]) + (" …" if len(self.known) > 40 else "") or "none"
        hint = suggest(self.name, self.known)
        super().__init__(f"unknown {what} {self.name!r}{hint} Valid: {listed}. {more}".strip(), parameter)


class UnsupportedError(EspalierError):
    """The model, its state or the target does not allow the operation."""


class DataError(EspalierError):
    """Examples, labels or batches that cannot be used."""


class NonFiniteError(EspalierError):
    """Predictions that are NaN or infinite. `layer` names the module whose output was so first."""

    def __init__(self, message: str, batch: int, layer: str | None = None):
        super().__init__(message)
        self.batch, self.layer = batch, layer


class _PathError(EspalierError):
    def __init__(self, message: str, path: str | Path | None = None):
        super().__init__(message)
        self.path = None if path is None else Path(path)


class FormatError(_PathError):
    """A file that is damaged, of a newer version or not of the expected format."""


class FolderError(_PathError):
    """A file or folder that is missing, cannot be written, or holds something that must not be replaced."""


class ConflictError(FolderError):
    """A folder that holds a run or a training with other settings. `differences` lists them."""

    def __init__(self, message: str, path: str | Path | None = None, differences: str = ""):
        super().__init__(message, path)
        self.differences = differences


class DependencyError(EspalierError):
    """An optional package that is not installed. `extra` names the extra that brings it, if one does."""

    def __init__(self, package: str, extra: str, purpose: str):
        what = f"'espalier[{extra}]'" if extra else package
        super().__init__(f"{purpose} needs {package}. Install it: pip install {what}")
        self.package, self.extra = package, extra


def suggest(name: str, known: Iterable[str]) -> str:
    """End a sentence about a wrong name: `, did you mean 'gnorm'?`, or just a full stop."""
    near = get_close_matches(name, list(known), n=1)
    return f", did you mean {near[0]!r}?" if near else "."


def differences(before: Any, now: Any, name: str = "") -> str:
    """List what differs between two descriptions: `step 3, now 1`."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        return "; ".join(differences(before.get(k), now.get(k), f"{name} {k}".strip()) for k in keys)
    return f"{name} {_short(before)}, now {_short(now)}".strip()


def _short(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) < 60 else text[:57] + "…"
