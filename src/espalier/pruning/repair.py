"""Repair of a cut model in closed form: what was removed is made up for by what is left.

From the bottom to the top, sublayer by sublayer, the kept columns and the bias of the matrix that writes into
the residual stream are fitted by least squares, so that the stream after it equals the unpruned model's,
given the inputs that the cut and already repaired model below produces. No labels, no gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site, WeightSite
from ..architectures.sites import sites as find_sites
from ..core.batches import Batch, Batches, examples_in, require_batches
from ..core.errors import DataError, UnknownNameError
from ..core.progress import OnProgress, count_calls, ignore
from ..core.terminal import log
from ..core.types import PreTrainedModel
from ..engine.activations import real_tokens
from ..engine.cache import ActivationCache, first_token_only
from ..engine.passes import frozen_eval
from ..engine.products import fast_products
from ..engine.stream import Write, Writes, follow_writers
from ..engine.token_places import dropped_tokens, following, narrow_blocks
from .least_squares import FITS, Change, Sums
from .pairs import ends_differ, pair_sites

NONE = "none"
REPAIRS = (NONE, *FITS)
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)  # of the penalty, relative to the mean square of an input
HELD_OUT = 5  # one in so many examples chooses the strength


@dataclass(frozen=True)
class Repaired:
    """What was done to one sublayer; losses are mean squares on held-out examples."""

    site: str
    rows: int
    columns: int
    before: float
    after: float
    strength: float | None  # None: no fit was better than the weights as they were
    stream: bool  # whether the residual stream was the target, or the sublayer's own output


def repair(
    model: PreTrainedModel,
    dense: PreTrainedModel,
    batches: Batches | Sequence[dict[str, Any]],
    how: str = "refit",
    *,
    strengths: Sequence[float] = STRENGTHS,
    every: bool = False,
    only: Collection[str] | None = None,
    on_progress: OnProgress = ignore,
) -> list[Repaired]:
    """Change the writers of a cut model, in place, so that it follows the `dense` one; return what was done.

    >>> small = cut(copy.deepcopy(model), mask)
    >>> repair(small, model, batches)

    `how` is "refit" (all kept columns and the bias), "scale" (one factor for each unit), "bias" or "none".
    The strength of the penalty is chosen for each sublayer on held-out examples; a sublayer that no strength
    improves keeps its weights, and so does one that lost no unit, unless `every` is true. `only` names the
    sites to repair, if not all. Padding is left out, and so are tokens of the last block that a classifier
    does not read. Where a model drops tokens, those that are left are fitted, in all layers above.
    """
    if how not in REPAIRS:
        raise UnknownNameError("repair", how, REPAIRS, "repair")
    data = batches if isinstance(batches, Batches) else Batches(batches)
    require_batches(data, "repair")
    if how == NONE:
        return []
    with following(model, dense):
        todo = pair_sites(model, dense, every=every, narrow=narrow_blocks(model))
        todo = [pair for pair in todo if only is None or pair[0].name in only]
        if not todo:
            return []
        job = _Repair(model, dense, data, how, strengths)
        started = count_calls(on_progress, "repairing", len(todo))
        with job.undone_on_error(), frozen_eval(model), frozen_eval(dense), fast_products():
            for _, members in groupby(todo, key=lambda pair: pair[0].path):
                job.repair_block(list(members), started)
    _log_notes(job.done)
    return job.done


def _log_notes(done: Sequence[Repaired]) -> None:
    short = [one for one in done if one.rows < one.columns]
    if short:
        log.warning(
            "repair: %d of %d sublayers have fewer calibration tokens than columns (%s: %d and %d); more "
            "`calibration` examples would help",
            *(len(short), len(done), short[0].site, short[0].rows, short[0].columns),
        )
    own = [one.site for one in done if not one.stream]
    if own:
        log.info("repair: a norm or a scale follows %s, so its own output is the target", ", ".join(own))


class _Repair:
    """One repair: the two models, and the weights as they were."""

    def __init__(self, model: Any, dense: Any, batches: Batches, how: str, strengths: Sequence[float]):
        self.fit, self.strengths = FITS[how], strengths if how != "bias" else (0.0,)
        # where the last block is another one, only that of the cut model ends in the tokens that are read
        with first_token_only(model) as shortened:
            self.first_only = shortened and ends_differ(model, dense)
        self.small, self.dense = (_Runner(one, batches, not self.first_only) for one in (model, dense))
        self.matrices = {site.linear: site for site in find_sites(dense, "weights")}
        self.batches, self.old = batches, dict[Any, dict[str, nn.Parameter]]()
        self.done: list[Repaired] = []

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Put the old weights back if anything fails; at the end new ones take gradients as they did."""
        try:
            yield
        except BaseException:
            for module, parameters in self.old.items():
                for name, parameter in parameters.items():
                    setattr(module, name, parameter)
            raise
        for module, parameters in self.old.items():
            for name, parameter in parameters.items():
                getattr(module, name).requires_grad_(parameter.requires_grad)

    def repair_block(self, pairs: Sequence[tuple[Site, Site]], started: Callable[[object], None]) -> None:
        """Repair the sublayers of one block; what the dense one writes is kept meanwhile."""
        started(pairs[0])
        targets: dict[str, list[list[_Target]]] = {site.name: [] for site, _ in pairs}
        for number, batch in enumerate(self.batches):
            found = self.dense.run(number, [other for _, other in pairs], whole=True)
            for site, other in pairs:
                matrix = self.matrices[other.module("write")]
                writes = found[other.module("write")]
                last = self.first_only and site.block is self.small.blocks[-1]
                targets[site.name].append([self._target(matrix, batch, write, last) for write in writes])
        for number, (site, other) in enumerate(pairs):
            if number:
                started(site)
            self._repair_site(site, targets.pop(site.name), moved=site.name != other.name)

    def _target(self, matrix: WeightSite, batch: Batch, write: Write, first_only: bool) -> _Target:
        shape = write.stream.shape
        numbers = torch.arange(shape[:-1].numel(), device=write.stream.device).view(*shape[:-1], 1)
        rows = real_tokens(self.dense.model, matrix, batch, numbers)[:, 0]
        size = examples_in(batch)
        if first_only:
            rows = rows[rows % (shape[:-1].numel() // size) == 0]
        first = self.dense.first[id(batch)]
        each = rows // (len(numbers.flatten()) // size) + first if self.batches.examples >= HELD_OUT else rows
        held = each % HELD_OUT == HELD_OUT - 1
        return _Target(rows, rows, shape[:-1], _rows_of(write.stream, rows), held, write.added)

    def _present(self, targets: Sequence[_Target], writes: Sequence[Write]) -> list[_Target]:
        """Return the targets of the tokens that the cut model has just read."""
        left = dropped_tokens(self.small.model)
        if left is None:
            return list(targets)
        found = []
        for target, write in zip(targets, writes, strict=True):
            read, tokens = write.stream.shape[1], target.shape[1]
            places, real = left[0][:, :read], left[1][:, :read]
            real = real & (places < tokens)  # of first tokens alone, those that are no padding
            start = torch.arange(len(places), device=places.device)[:, None] * tokens
            kept = torch.isin(there := (places + start)[real], target.rows)
            own = torch.arange(real.numel(), device=real.device)[real.flatten()][kept]
            which = torch.searchsorted(target.rows, there[kept])
            stream, held = target.stream[which], target.held[which]
            found.append(replace(target, rows=target.rows[which], own=own, stream=stream, held=held))
        return found

    def _repair_site(self, site: Site, targets: Sequence[Sequence[_Target]], moved: bool) -> None:
        writer = site.module("write")
        weight = writer.weight.detach().movedim(site.axis("write"), 0).double()  # [columns, width]
        biased = getattr(writer, "bias", None) is not None
        fitted, held = (Sums.zeros(len(weight), weight.shape[1], weight.device) for _ in range(2))
        stream = True
        for number, known in enumerate(targets):
            writes = self.small.run(number, [site])[writer]
            for write, target in zip(writes, self._present(known, writes), strict=True):
                x, d = _rows_of(write.read, target.own), target.stream - _rows_of(write.stream, target.own)
                if not (x.isfinite().all() and d.isfinite().all()):
                    raise DataError(f"batch {number} gives numbers that are not finite at {site.name}")
                stream = stream and write.added and target.added
                fitted.add(x[~target.held], d[~target.held])
                held.add(x[target.held], d[target.held])
        if not fitted.rows + held.rows or (moved and not stream):
            return  # no batch ran it, or the output of another sublayer is nothing to follow
        change, strength, before, after = self._choose(fitted, held, weight, site.owners(), biased)
        if change is not None:
            self._apply(site, weight + change[0], change[1] if biased else None)
        rows = fitted.rows + held.rows
        self.done.append(Repaired(site.name, rows, len(weight), before, after, strength, stream))

    def _choose(
        self, fitted: Sums, held: Sums, weight: Tensor, owners: Tensor, biased: bool
    ) -> tuple[Change | None, float | None, float, float]:
        """Return the best change, its strength, and the loss on held-out rows before and after."""
        judge = held if held.rows else fitted
        best, chosen = (before := judge.loss((torch.zeros_like(weight), torch.zeros_like(held.d)))), None
        for strength in self.strengths:
            loss = judge.loss(self.fit(fitted, weight, owners, biased, strength))
            if loss < best:
                best, chosen = loss, strength
        change = None if chosen is None else self.fit(fitted + held, weight, owners, biased, chosen)
        if change is None or not judge.loss(change) < before:
            return None, None, before, before
        return change, chosen, before, best

    def _apply(self, site: Site, weight: Tensor, bias: Tensor | None) -> None:
        # New parameters: the old ones may be shared with the dense model, and come back after an error.
        writer = site.module("write")
        self.old[writer] = {"weight": writer.weight} | ({} if bias is None else {"bias": writer.bias})
        new = weight.movedim(0, site.axis("write")).to(writer.weight.dtype).contiguous()
        writer.weight = nn.Parameter(new, requires_grad=False)
        if bias is not None:
            writer.bias = nn.Parameter((writer.bias + bias).to(writer.bias.dtype), requires_grad=False)
        self.small.changed(site.block)


@dataclass(frozen=True)
class _Target:
    rows: Tensor  # of the flattened stream: real tokens
    own: Tensor  # of the cut model's: the same, unless it drops tokens
    shape: torch.Size
    stream: Tensor  # of these rows
    held: Tensor  # which of them are held out
    added: bool


class _Runner:
    """Run a model up to given writers; blocks below the lowest change are not run again."""

    def __init__(self, model: Any, batches: Batches, shortened: bool):
        self.model, self.batches, self.cache = model, batches, ActivationCache()
        self.shortened = shortened
        found = find_sites(model)
        self.blocks = list(dict.fromkeys(site.block for site in found))
        self.cache.usable = all(site.uses == 1 for site in found)
        self.states = [0 for _ in self.blocks]
        starts = accumulate((examples_in(batch) for batch in batches), initial=0)
        self.first = {id(batch): start for batch, start in zip(batches, starts)}

    def changed(self, block: nn.Module) -> None:
        self.states[self.blocks.index(block)] += 1

    def run(self, number: int, sites: Sequence[Site], whole: bool = False) -> Writes:
        """Return what the writers of one block wrote; `whole` if its own output will be needed too."""
        writers = [site.module("write") for site in sites]
        place = self.blocks.index(sites[0].block)
        after = self.blocks[place + 1 :] if whole else []
        short = first_token_only(self.model) if self.shortened else nullcontext()
        with short, self.cache.over(self.blocks, list(self.states)) as now:
            now.begin(number)
            found = follow_writers(
                self.model, writers, self.batches[number], sites[0].uses, after[0] if after else None
            )
        if place and not getattr(
            self.model.config, "is_encoder_decoder", False
        ):  # a decoder reads the encoder
            self.cache.forget_below(number, place - 1)
        return found


def _rows_of(tensor: Tensor, rows: Tensor) -> Tensor:
    return tensor.flatten(0, -2)[rows]
