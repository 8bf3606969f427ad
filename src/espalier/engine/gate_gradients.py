"""The gradient of the loss by a gate on each unit, example by example, from one pass over activations.

A gate multiplies what its unit's writer reads, x, so that its gradient is the sum of x·∂loss/∂x over the
unit's channels and the example's tokens: it can be computed without a gate. Blocks and sublayers get gates.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..architectures.stack import StackSite
from ..core.batches import Batches, Loss, examples_in, model_inputs
from ..core.errors import InvalidValueError
from .gates import gated
from .passes import Calls, backward_passes


def gate_gradients(
    model: nn.Module,
    sites: Sequence[Site | StackSite],
    batches: Batches,
    each: Callable[[Tensor], Tensor],
    maps: Mapping[str, Tensor] | None = None,
    *,
    losses: Sequence[Loss] = (),
    by_text: bool = False,
) -> dict[str, Tensor]:
    """Return {site: mean over examples of `each`(gradient)}, in float64; the loss is a mean over examples.

    `losses` are taken instead of that of the batches, and `each` of their gradients are added.
    With `maps`, [channels, channels] by site, a gate multiplies only that image of what the writer reads.
    Two texts with one score are one example, unless the loss is one of each text (`by_text`).
    """

    def sum_over(group: Sequence[int]) -> Tensor:
        """Return the sum over the examples of a group, [units of all sites]."""
        parts = (
            torch.cat(grads, 1)
            for n in group
            for grads in _of_batch(model, sites, batches, n, losses or [batches.loss], maps, by_text)
        )
        return torch.stack([each(grads).sum(0) for grads in parts]).sum(0)

    mean = batches.map_groups(sum_over).sum(0) / (batches.examples if by_text else batches.predictions)
    return dict(zip([s.name for s in sites], mean.split([s.units for s in sites])))


def batch_gradients(
    model: nn.Module, sites: Sequence[Site | StackSite], batches: Batches, size: int
) -> dict[str, Tensor]:
    """Return {site: gradients of the mean loss of each `size` examples in their order, [groups, units]}."""
    if size < 1:
        raise InvalidValueError(f"`batch` is a number of examples; got {size!r}", "batch")
    groups = -(-batches.predictions // size)
    total = [torch.zeros(groups, site.units, dtype=torch.float64) for site in sites]
    counts, start = torch.zeros(groups, dtype=torch.float64), 0
    for number in range(len(batches)):
        rows = range(start, start := start + batches.predictions_in(number))
        places = torch.as_tensor(batches.positions[number] if batches.positions else rows) // size
        counts.index_add_(0, places, torch.ones(len(places), dtype=torch.float64))
        (found,) = _of_batch(model, sites, batches, number, [batches.loss])
        for sums, grads in zip(total, found):
            sums.index_add_(0, places, grads)
    return {site.name: sums / counts[:, None] for site, sums in zip(sites, total)}


def _of_batch(
    model: nn.Module,
    sites: Sequence[Site | StackSite],
    batches: Batches,
    number: int,
    losses: Sequence[Loss],
    maps: Mapping[str, Tensor] | None = None,
    by_text: bool = False,
) -> Iterator[list[Tensor]]:
    """Yield the gate gradients of each site on one batch, [examples, units], for each loss."""
    size = examples_in(batches[number])
    examples = size if by_text else batches.predictions_in(number)
    # A loss is a mean over the batch: times its size, each example has its own gradient.
    summed = [lambda out, batch, loss=loss: loss(out, batch) * examples for loss in losses]
    units = [site for site in sites if isinstance(site, Site)]
    stacks = [site for site in sites if isinstance(site, StackSite)]
    writers = [site.module("write") for site in units]
    passes: list[Iterator[dict[str, Tensor]]] = []
    if units:
        seen = backward_passes(model, units, writers, batches, number, summed, side="input")
        passes.append(
            {s.name: _by_example(s, calls, size, (maps or {}).get(s.name)) for s in units} for calls in seen
        )
    if stacks:
        passes.append(_of_stacks(model, stacks, batches, number, summed))
    for found in zip(*passes, strict=True):
        grads = {name: value for part in found for name, value in part.items()}
        yield [_by_prediction(grads[site.name], examples) for site in sites]


def _by_prediction(grads: Tensor, examples: int) -> Tensor:
    return grads if len(grads) == examples else grads.unflatten(0, (examples, -1)).sum(1)


def _of_stacks(
    model: nn.Module, sites: Sequence[StackSite], batches: Batches, number: int, losses: Sequence[Loss]
) -> Iterator[dict[str, Tensor]]:
    """Yield the gradients of gates on blocks or sublayers, one gate for each example."""
    batch = batches[number]
    ones = {site.name: torch.ones(examples_in(batch), site.units) for site in sites}
    with torch.enable_grad(), gated(sites, ones) as gates:
        out = model(**model_inputs(batch))
    if batches.on_output:
        batches.on_output(number, out)
    for place, loss in enumerate(losses, 1):
        with torch.enable_grad():
            value = loss(out, batch)
        again = place < len(losses)
        grads = torch.autograd.grad(value, list(gates.values()), allow_unused=True, retain_graph=again)
        yield {
            name: (torch.zeros_like(gate) if grad is None else grad).double().cpu()
            for (name, gate), grad in zip(gates.items(), grads)
        }


def _by_example(site: Site, seen: Calls, size: int, image: Tensor | None = None) -> Tensor:
    """Return the gate gradients of a site, [examples, units]."""
    total = torch.zeros(size, site.units, dtype=torch.float64)
    for x, grad in seen[site.module("write")]:
        x = x if image is None else x @ image.to(x)
        product = x.double() * grad.double()
        if product.dim() == 2:  # [batch * tokens, channels] in OPT
            product = product.unflatten(0, (size, -1))
        total += product.sum(1).cpu()[:, site.index("write")].sum(2)
    return total
