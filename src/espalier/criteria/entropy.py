"""Entropy: how evenly a head spreads its attention; the most even ones are removed first.

The entropy of every row of an attention map, averaged over the real tokens of a sentence, then over
sentences. The score is its negative, since bigger means keep.

form      "exact", with 0·log 0 = 0; or, to reproduce published numbers, "A": −Σ a·log a, which is not a
          number where a is 0; "B": −Σ a·log(a+ε); "C": −Σ (a+ε)·log(a+ε)
epsilon   of forms B and C
special   whether special tokens count; if not, batches must hold a `special_tokens_mask`
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..core.batches import Batch, model_inputs
from ..core.errors import DataError, UnknownNameError
from ..engine.gates import watching_attention
from . import Batches, Scores, criterion

FORMS = ("exact", "A", "B", "C")


@criterion("heads", needs_data=True, unit="minus the entropy, in nats", colour="#D55E00", marker="s")
def entropy(
    model: nn.Module,
    sites: Sequence[Site],
    batches: Batches,
    *,
    form: str = "exact",
    epsilon: float = 1e-7,
    special: bool = True,
) -> Scores:
    if form not in FORMS:
        raise UnknownNameError("form of entropy", form, FORMS, "form")

    def add(site: Site, maps: Tensor, total: dict[str, Tensor], counted: Tensor | None) -> None:
        by_query = _entropy(maps, counted, form, epsilon, special)  # [batch, query heads]
        by_unit = by_query.unflatten(1, (site.units, -1)).mean(2)
        total[site.name] += by_unit.double().sum(0).cpu() / site.uses

    def sum_of(group: Sequence[int]) -> Tensor:
        """Return [units of all sites], the sum over the examples of a group."""
        total = {site.name: torch.zeros(site.units, dtype=torch.float64) for site in sites}
        for number in group:
            batch = batches[number]
            see = partial(add, total=total, counted=_counted(batch, special))
            with torch.no_grad(), watching_attention(model, sites, see):
                model(**model_inputs(batch, labels=False))
        return torch.cat(list(total.values()))

    mean = batches.map_groups(sum_of).sum(0) / batches.examples
    return Scores(zip([s.name for s in sites], (-mean).split([s.units for s in sites])))


def _counted(batch: Batch, special: bool) -> Tensor | None:
    """Return [batch, tokens], the rows that count, or None for all."""
    real = batch.get("attention_mask")
    if special:
        return None if real is None else real.bool()
    if "special_tokens_mask" not in batch:
        raise DataError(
            "to leave special tokens out, let the tokenizer mark them: return_special_tokens_mask=True"
        )
    ordinary: Tensor = ~batch["special_tokens_mask"].bool()
    return ordinary if real is None else real.bool() & ordinary


def _entropy(maps: Tensor, counted: Tensor | None, form: str, epsilon: float, special: bool) -> Tensor:
    """Return [batch, heads] from attention maps [batch, heads, to, from]."""
    if counted is not None and counted.shape[1] != maps.shape[2]:
        counted = None  # attention over something else than the tokens of the batch
    if not special and counted is not None:
        maps = maps * counted[:, None, None, :]
        maps = maps / maps.sum(-1, keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)
    if form == "exact":
        each = torch.special.entr(maps)
    elif form == "A":
        each = -maps * maps.log()
    elif form == "B":
        each = -maps * (maps + epsilon).log()
    else:
        each = -(maps + epsilon) * (maps + epsilon).log()
    if form in ("A", "C") and counted is not None and counted.shape[1] == maps.shape[3]:
        # the floor of C would count padding too, and 0·log 0 of A is not a number there
        each = each.masked_fill(~counted[:, None, None, :], 0)
    rows = each.sum(-1)  # [batch, heads, to]
    if counted is None:
        return rows.mean(-1)
    weight = counted[:, None].to(rows)
    return (rows * weight).sum(-1) / weight.sum(-1).clamp_min(1)
