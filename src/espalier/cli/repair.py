"""SparseGPT of the command line: pruned by its scores, and repaired as it goes where that can be done."""

from __future__ import annotations

from typing import Any

from .show import say


def repaired(bench: Any, regime: Any, origin: dict[str, Any], options: dict[str, Any]) -> bool:
    """Whether the method is one that repairs, and did. The origin says so; `options` are the criterion's."""
    from ..core.log import log
    from ..pruning.repair import METHOD, compensate, repairs
    from ..training.held_mask import zeros_of

    scope = origin["scope"]
    if origin["by"].partition(":")[0] != METHOD:
        return False
    origin["repaired"] = repairs(METHOD, scope)
    if not origin["repaired"]:
        log.warning(
            "sparsegpt repairs what is pruned matrix by matrix or N:M. By --scope %s its scores alone "
            "choose, and nothing is repaired: for that, --scope layer, or leave --scope out",
            scope,
        )
        return False
    groups = dict(zip("nm", map(int, scope.split(":")))) if ":" in scope else {}
    living = zeros_of(bench.sites)
    compensate(bench.model, bench.sites, regime.batches, regime.keep, mask=living, **groups, **options)
    say("repaired: the weights that stay were moved to make up for those that went")
    return True
