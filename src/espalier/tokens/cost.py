"""What a model costs that drops tokens: every layer is counted with the tokens that it reads."""

from __future__ import annotations

from ..architectures.sites import blocks, sites
from ..architectures.table import architecture_of
from ..core.errors import InvalidValueError
from ..core.types import PreTrainedModel
from .schedule import THRESHOLD, TokenSchedule


def dropped_macs(model: PreTrainedModel, schedule: TokenSchedule, tokens: int) -> int:
    """Return the MACs of the blocks for a text of so many tokens; what a threshold keeps is not known."""
    if schedule.way == THRESHOLD:
        raise InvalidValueError("how many tokens a threshold keeps depends on the text", "schedule")
    table, total, left = architecture_of(model), 0, tokens
    paths = [path for path, _ in blocks(model, table)]
    by_path = {path: [site for site in sites(model) if site.path == path] for path in paths}
    for number, path in enumerate(paths):
        acts = schedule.acts(number)  # a layer that passes on as many as the one before removes none
        after = min(left, schedule.count(number, tokens)) if acts else left
        if schedule.way == "merge":  # at most half of the tokens at once, and the first is never merged
            after = max(after, left - max(0, (left - 1) // 2))
        for site in by_path[path]:
            early = table.tokenwise_from and site.target == "neurons"  # dropped in front of the neurons
            total += site.units * site.macs_per_unit(after if early else left)
        if table.tokenwise_from or number < len(paths) - 1:
            left = after
    return total
