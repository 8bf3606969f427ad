"""Which tokens will be looked at: forecast from a token's state by a line fitted to the model itself.

The attention that a token receives in a layer says little of what it will receive above. The layers above can
be asked on calibration texts: a ridge regression from the state at which a token may leave to the logarithm
of the attention that it receives later. It needs no labels, no gradients and, once fitted, no attention maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.sites import blocks
from ..architectures.table import architecture_of
from ..core.batches import Batch, Batches, model_inputs, require_batches
from ..core.errors import DataError
from ..core.types import PreTrainedModel
from ..engine.cache import tokenwise_module
from ..engine.passes import frozen_eval
from ..engine.token_places import reading_all
from . import attention
from .dropper import Dropper, check_droppable
from .schedule import TOP, TokenSchedule

STRENGTH = 1e-3  # of the penalty, relative to the mean square of a state's entries
LEAST = 1e-4  # of the even share of attention; below it nothing is told apart
DIGITS = 7  # of the numbers that a config keeps

Forecast = tuple[float, ...]


def forecast_tokens(
    model: PreTrainedModel, schedule: TokenSchedule, batches: Batches | Sequence[dict[str, Any]]
) -> TokenSchedule:
    """Return a schedule of the same fractions that keeps the tokens that will be looked at most.

    >>> schedule = forecast_tokens(model, even_schedule(6, remove=0.5, stages=1, after=2), batches)
    >>> set_schedule(model, schedule)
    """
    check_droppable(model, replace(schedule, way=TOP, forecasts=()) if schedule.forecasts else schedule)
    return schedule.forecasting(fit_forecasts(model, batches))


def fit_forecasts(
    model: PreTrainedModel, batches: Batches | Sequence[dict[str, Any]], strength: float = STRENGTH
) -> list[Forecast]:
    """Return the factors of a token's state in each layer and a constant: its forecast is their sum."""
    data = batches if isinstance(batches, Batches) else Batches(batches)
    require_batches(data, "a forecast of attention")
    squares: list[Tensor] = []
    products: list[Tensor] = []
    recorder = None
    try:
        with reading_all(model), frozen_eval(model), torch.no_grad():
            recorder = _Recorder(model)
            for batch in data:
                for number, (x, y) in enumerate(recorder.run(model, batch)):
                    if len(squares) == number:
                        squares.append(x.new_zeros(x.shape[1], x.shape[1]))
                        products.append(x.new_zeros(x.shape[1]))
                    squares[number] += x.T @ x
                    products[number] += x.T @ y
    finally:
        if recorder is not None:
            recorder.remove()
    if not all(one.isfinite().all() for one in (*squares, *products)):
        raise DataError("the states of tokens are not finite: nothing can be forecast from them")
    return [_solve(square, product, strength) for square, product in zip(squares, products)]


def _solve(square: Tensor, product: Tensor, strength: float) -> Forecast:
    added = strength * square.diagonal()[:-1].mean().clamp(min=torch.finfo(square.dtype).tiny)
    found = torch.linalg.solve(
        square + added * torch.eye(len(square), dtype=square.dtype, device=square.device), product
    )
    return tuple(float(f"{value:.{DIGITS}g}") for value in found.tolist())


class _Recorder(Dropper):
    """Drops nothing; keeps the state of every token where it may leave a layer, and who looks at it there."""

    def __init__(self, model: PreTrainedModel):
        layers = len(list(blocks(model, architecture_of(model))))
        super().__init__(model, TokenSchedule(TOP, (1.0,) * layers), choose=self)
        self.first_only = tokenwise_module(model) is not None
        self.seen: list[tuple[Tensor, Tensor]] = []

    def run(self, model: Any, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Return (states and a one, logarithm of the attention received above) of real tokens, by layer."""
        self.seen.clear()
        model(**model_inputs(batch, labels=False))
        real = self.state.real
        assert real is not None
        found, n = [], real.sum(1, keepdim=True)
        for number, (hidden, _) in enumerate(self.seen):
            above = [looked for _, looked in self.seen[number + 1 :]] or [self.seen[-1][1]]
            share = torch.stack(above).mean(0).double() * n
            x = nn.functional.pad(hidden[real].double(), (0, 1), value=1.0)
            found.append((x, share.clamp(min=LEAST).log()[real]))
        return found

    def narrow(self, number: int, _: nn.Module, args: Any, kwargs: Any, out: Tensor) -> Any:
        self._see(number, out)

    def leave(self, number: int, _: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        if not self.inside:
            self._see(number, out[0] if isinstance(out, tuple) else out)

    def _see(self, number: int, hidden: Tensor) -> None:
        state = self.state
        assert state.real is not None
        if state.maps is None or not state.maps.shape[1]:  # no head is left: all look at all
            looked = state.real / state.real.sum(1, keepdim=True)
        elif number == self.last and self.first_only:  # nothing but the first token is read above
            first = state.real.long().argmax(1)
            looked = state.maps.mean(1)[torch.arange(len(first), device=first.device), first]
        else:
            looked = attention.received(state.maps, state.real)
        state.maps = None
        self.seen.append((hidden, looked.to(hidden.dtype)))
