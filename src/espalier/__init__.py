"""espalier: make transformers smaller."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name -> the module it lives in, imported when first asked for: `import espalier` costs nothing
_HOMES = {
    "EspalierError": "errors",
    "Batches": "core",
    "Mask": "core",
    "Plan": "core",
    "Scores": "core",
    "Anatomy": "anatomy",
    "heads": "anatomy",
    "learn": "anatomy",
    "neurons": "anatomy",
    "sites": "anatomy",
    "gated": "probe",
    "masked": "probe",
    "criterion": "criteria",
    "lowest": "selection",
    "n_m": "selection",
    "per_layer": "selection",
    "per_row": "selection",
    "compensate": "compensation",
    "Ramp": "schedules",
    "cubed": "schedules",
    "cubic": "schedules",
    "geometric": "schedules",
    "greedy": "schedules",
    "linear": "schedules",
    "one_shot": "schedules",
    "prune": "pruning",
    "cut": "surgery",
    "plan_of": "surgery",
    "prune_heads": "surgery",
    "zero": "surgery",
    "cost": "measure",
    "sparsity": "measure",
    "export": "plain",
    "load": "store",
    "save": "store",
}
__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from .anatomy import Anatomy, heads, learn, neurons, sites
    from .compensation import compensate
    from .core import Batches, Mask, Plan, Scores
    from .criteria import criterion
    from .errors import EspalierError
    from .measure import cost, sparsity
    from .plain import export
    from .probe import gated, masked
    from .pruning import prune
    from .schedules import Ramp, cubed, cubic, geometric, greedy, linear, one_shot
    from .selection import lowest, n_m, per_layer, per_row
    from .store import load, save
    from .surgery import cut, plan_of, prune_heads, zero


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'espalier' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _teach_from_pretrained(_: Any) -> None:
    from .skeleton import register

    register()


def _when_transformers_loads_models() -> None:
    # After `import espalier`, plain from_pretrained reads our folders. The loader's own module takes a
    # second to import, so this waits until transformers imports it.
    from wrapt import register_post_import_hook

    register_post_import_hook(_teach_from_pretrained, "transformers.quantizers.auto")


_when_transformers_loads_models()
