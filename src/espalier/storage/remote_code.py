"""The modeling file of a folder: with it transformers loads a cut model where espalier is not installed."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from ..core.errors import UnsupportedError
from ..io.paths import CONFIG, MODELING, SPARSE_WEIGHTS
from ..pruning import grafts, skeleton
from ..tokens import installation
from . import hook


def connect() -> None:
    """Let transformers build, load and write cut models."""
    hook.register()
    hook.attach(modeling_code, check_savable, {installation.CONFIG_KEY: installation.restore})


def modeling_code(classes: dict[str, str]) -> str:
    """Return code with which `from_pretrained(folder, trust_remote_code=True)` works without espalier."""
    files = [Path(inspect.getfile(m)).read_text(encoding="utf-8") for m in (grafts, skeleton, hook)]
    behaviours, shapes, loader = (
        "".join(line for line in text.splitlines(True) if not line.startswith("from .")) for text in files
    )
    names = {"CONFIG": CONFIG, "MODELING": MODELING, "SPARSE_WEIGHTS": SPARSE_WEIGHTS}
    constants = [f"{name} = {value!r}" for name, value in names.items()]
    lines = [behaviours, "", shapes, "", *constants, "", loader, ""]
    lines += ["import transformers", "", "register()"]
    lines += ["attach(lambda classes: Path(__file__).read_text(encoding='utf-8'))", ""]
    for name in sorted(set(classes.values())):
        lines += ["", f"class {name}(transformers.{name}):", f'    """{name}, cut."""', ""]
    return "\n".join(lines)


def check_savable(model: Any) -> None:
    """Raise if a model could not be loaded again, because its config does not describe its shapes."""
    record = getattr(model.config, "quantization_config", None)
    if skeleton.is_ours(record):
        sizes = {name: list(p.shape) for name, p in model.base_model.named_parameters()}
        for name, shape in skeleton.check(record)["shapes"].items():
            if sizes.get(name, shape) != shape:
                raise UnsupportedError(
                    f"the config records another cut than this model has: {name} has size {sizes[name]}, not "
                    f"{shape}. Models that share a config need copy.deepcopy(config)"
                )
        return
    written = [model.config, *(getattr(model.config, name, None) for name in model.config.sub_configs)]
    for path, part in model.named_modules():
        config = getattr(part, "config", None) if hasattr(part, "save_pretrained") else None
        record = getattr(config, "quantization_config", None)
        if skeleton.is_ours(record) and not any(config is one for one in written):
            raise UnsupportedError(
                f"{path} was cut, and the config of this {type(model).__name__} does not contain that of the "
                f"part, so it could not be loaded again. Save the part alone: save(model.{path}, folder)"
            )
