"""espalier: make transformers smaller."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name -> the module it lives in, imported when first asked for: `import espalier` costs nothing
_HOMES = {
    "EspalierError": "core.errors",
    "Batches": "core.batches",
    "Mask": "core.mask",
    "Plan": "core.plan",
    "Scores": "core.mask",
    "Architecture": "architectures.table",
    "heads": "architectures.table",
    "learn": "architectures.table",
    "neurons": "architectures.table",
    "sites": "architectures.table",
    "gated": "engine.gates",
    "masked": "engine.gates",
    "criterion": "criteria",
    "compensate": "pruning.repair",
    "remove_lowest": "selection.scopes",
    "schedule": "selection.schedules",
    "prune_steps": "pruning.loop",
    "Ramp": "selection.schedules",
    "greedy": "selection.schedules",
    "cut": "pruning.cut",
    "plan_of": "pruning.cut",
    "prune_heads": "pruning.cut",
    "zero": "pruning.cut",
    "cost": "evaluation.cost",
    "sparsity": "evaluation.cost",
    "export": "exporters.plain",
    "load": "storage.save",
    "save": "storage.save",
}
__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from .architectures.table import Architecture, heads, learn, neurons, sites
    from .core.batches import Batches
    from .core.errors import EspalierError
    from .core.mask import Mask, Scores
    from .core.plan import Plan
    from .criteria import criterion
    from .engine.gates import gated, masked
    from .evaluation.cost import cost, sparsity
    from .exporters.plain import export
    from .pruning.cut import cut, plan_of, prune_heads, zero
    from .pruning.loop import prune_steps
    from .pruning.repair import compensate
    from .selection.schedules import Ramp, greedy, schedule
    from .selection.scopes import remove_lowest
    from .storage.save import load, save


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'espalier' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _teach_from_pretrained(_: Any) -> None:
    from .pruning.skeleton import register

    register()


def _when_transformers_loads_models() -> None:
    # After `import espalier`, plain from_pretrained reads our folders. The loader's own module takes a
    # second to import, so this waits until transformers imports it.
    from wrapt import register_post_import_hook

    register_post_import_hook(_teach_from_pretrained, "transformers.quantizers.auto")


_when_transformers_loads_models()
