"""A Python file of the user's own: a table or a criterion. It is run, so let it be one you know."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from ..core.errors import EspalierError


def run(file: str | Path) -> Any:
    """The module that the file makes."""
    spec = spec_from_file_location(Path(file).stem, file)
    if not Path(file).is_file() or spec is None or spec.loader is None:
        raise EspalierError(f"no file {str(file)!r}: give the path of a Python file")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise EspalierError(f"{file} does not run: {type(error).__name__}: {error}") from error
    return module
