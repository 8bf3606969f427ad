"""Python files of the user (an architecture table, a criterion, a task), which are run; optional packages."""

from __future__ import annotations

from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from ..core.errors import DependencyError, FolderError, FormatError


def load(file: str | Path) -> ModuleType:
    """Run the file and return it as a module."""
    spec = spec_from_file_location(Path(file).stem, file)
    if not Path(file).is_file() or spec is None or spec.loader is None:
        raise FolderError(f"no Python file {str(file)!r}", file)
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise FormatError(f"{file} fails when it is run: {type(error).__name__}: {error}", file) from error
    return module


def import_optional(module: str, extra: str, purpose: str) -> ModuleType:
    """Import a package that only an extra installs."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0].replace("sklearn", "scikit-learn")
        raise DependencyError(package, extra, purpose) from None
