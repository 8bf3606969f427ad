"""espalier: make transformers smaller."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .core import terminal as _terminal  # now, so that a level chosen after the import of espalier stays

__version__ = "0.1.0"

# name -> the module it lives in, imported when first asked for: `import espalier` costs nothing
_HOMES = {
    **dict.fromkeys(("compare", "evaluate", "export", "measure", "prune", "push", "recover"), "api"),
    **dict.fromkeys(("report", "reproduce", "run", "score", "train"), "api"),
    "EspalierError": "core.errors",
    "Batches": "core.batches",
    "Mask": "core.mask",
    "Plan": "core.mask",
    "Scores": "core.mask",
    "Architecture": "architectures.table",
    "HeadSpec": "architectures.table",
    "NeuronSpec": "architectures.table",
    "register_architecture": "architectures.table",
    "sites": "architectures.sites",
    "gated": "engine.gates",
    "masked": "engine.gates",
    "criterion": "criteria",
    "compensate": "pruning.compensation",
    "dropping_tokens": "tokens.installation",
    "set_schedule": "tokens.installation",
    "forecast_tokens": "tokens.forecast",
    "TokenSchedule": "tokens.schedule",
    "even_schedule": "tokens.schedule",
    "remove_lowest": "selection.scopes",
    "schedule": "selection.schedules",
    "prune_steps": "pruning.loop",
    "Ramp": "selection.schedules",
    "greedy": "selection.schedules",
    "cut": "pruning.cut",
    "plan_of": "pruning.cut",
    "prune_heads": "pruning.heads",
    "trim_vocabulary": "pruning.vocabulary",
    "repair": "pruning.repair",
    "zero": "pruning.zero",
    "cost": "evaluation.cost",
    "costs": "reports.costs",
    "show_tokens": "reports.survivors",
    "sparsity": "evaluation.cost",
    "PruneCallback": "training.trainer_callback",
    "load": "storage.load",
    "save": "storage.save",
}
__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from .api import (
        compare,
        evaluate,
        export,
        measure,
        prune,
        push,
        recover,
        report,
        reproduce,
        run,
        score,
        train,
    )
    from .architectures.sites import sites
    from .architectures.table import Architecture, HeadSpec, NeuronSpec, register_architecture
    from .core.batches import Batches
    from .core.errors import EspalierError
    from .core.mask import Mask, Plan, Scores
    from .criteria import criterion
    from .engine.gates import gated, masked
    from .evaluation.cost import cost, sparsity
    from .pruning.compensation import compensate
    from .pruning.cut import cut, plan_of
    from .pruning.heads import prune_heads
    from .pruning.loop import prune_steps
    from .pruning.repair import repair
    from .pruning.vocabulary import trim_vocabulary
    from .pruning.zero import zero
    from .reports.costs import costs
    from .reports.survivors import show_tokens
    from .selection.schedules import Ramp, greedy, schedule
    from .selection.scopes import remove_lowest
    from .storage.load import load
    from .storage.save import save
    from .tokens.forecast import forecast_tokens
    from .tokens.installation import dropping_tokens, set_schedule
    from .tokens.schedule import TokenSchedule, even_schedule
    from .training.trainer_callback import PruneCallback


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'espalier' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _register_loader(_: Any) -> None:
    from .storage.hook import register

    register()


def _register_configs(_: Any) -> None:
    from .models.registration import register_configs

    register_configs()


def _register_models(_: Any) -> None:
    from .models.registration import register_models

    register_models()


def _connect(_: Any) -> None:
    from .storage.remote_code import connect

    connect()


def _hook_into_transformers() -> None:
    # After `import espalier`, from_pretrained reads our folders, and the auto classes know our models. All of
    # this takes a second to import, so it waits until transformers imports it.
    from wrapt import register_post_import_hook

    register_post_import_hook(_register_loader, "transformers.quantizers.auto")
    register_post_import_hook(_connect, "transformers.modeling_utils")
    register_post_import_hook(_register_configs, "transformers.models.auto.configuration_auto")
    register_post_import_hook(_register_models, "transformers.models.auto.modeling_auto")


def _keep_old_folders_loading() -> None:
    # The modeling file in sparse folders of version 0.1.0 imports this name.
    moved = ModuleType(f"{__name__}.sparse_folder")
    vars(moved)["Restorer"] = lambda files: import_module(".storage.sparse_folder", __name__).Restorer(files)
    sys.modules[moved.__name__] = moved


_hook_into_transformers()
_keep_old_folders_loading()
