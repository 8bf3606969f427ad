"""Wanda: |w|·‖x‖, x being what the weight reads over all real tokens (https://arxiv.org/abs/2306.11695).

Scores compare within an output row, so the scope is "row" unless another is given. Every layer reads what the
layers before it write as they are, in one pass over the batches.

sequential   layer after layer, as published: what is removed from a layer before the next is scored, a
             fraction of each row or N:M. Each layer then reads what the pruned layers before it write, with
             one pass over the batches for each. Give what will be removed: wanda:sequential=0.5
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby

from torch import Tensor, nn

from ..architectures.site import WeightSite
from ..core.errors import InvalidValueError
from ..engine.activations import check_readable, read_inputs
from ..engine.gates import masked
from ..selection.scopes import ROW, remove_lowest
from . import Batches, Scores, criterion


@criterion(
    "weights", rescored=True, scope="row", reads_inputs=True, needs_data=True, unit="weight times input norm"
)
def wanda(
    model: nn.Module, sites: Sequence[WeightSite], batches: Batches, *, sequential: float | str = 0.0
) -> Scores:
    if not sequential:
        return _score(model, sites, batches)
    if isinstance(sequential, bool) or not (isinstance(sequential, str) or 0 < sequential < 1):
        raise InvalidValueError(
            f"`sequential` is the fraction of each row to remove, or N:M; got {sequential!r}",
            "sequential",
        )
    check_readable(sites, batches, "wanda")  # all, before the first pass
    amount = {"scope": sequential} if isinstance(sequential, str) else {"scope": ROW, "remove": sequential}
    scores = Scores()
    with ExitStack() as pruned:
        for _, layer in groupby(sites, key=lambda site: site.name.partition("/")[0]):
            members = list(layer)
            found = _score(model, members, batches)
            scores.update(found)
            pruned.enter_context(masked(members, remove_lowest(found, **amount)))
    return scores


def _score(model: nn.Module, sites: Sequence[WeightSite], batches: Batches) -> Scores:
    squares = {s.name: s.linear.weight.new_zeros(s.shape[s.input_axis]).double() for s in sites}

    def add(site: WeightSite, x: Tensor) -> None:
        squares[site.name] += x.double().square().sum(0)

    read_inputs(model, sites, batches, add, "wanda")

    def score(site: WeightSite) -> Tensor:
        norm = squares[site.name].sqrt()
        return site.fold(lambda w, _: w.abs() * (norm[:, None] if site.input_axis == 0 else norm).to(w))

    return Scores({s.name: score(s) for s in sites}, {s.name: s.input_axis for s in sites})
