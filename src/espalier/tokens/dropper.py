"""Dropping tokens: what a layer does not pass on, no later layer computes.

Hidden states, masks and positions are gathered in front of the next layer; in the end every token is back in
its place, with the state that it had when it left, so that heads of all kinds read what they expect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.sites import blocks, sites, unwrapped
from ..architectures.table import architecture_of, architectures
from ..core.errors import InvalidValueError, UnsupportedError
from ..core.types import PreTrainedModel
from ..pruning.skeleton import LocalConfig
from . import attention
from .choice import choose_tokens, first_of
from .merge import merge_similar
from .schedule import FORECAST, MERGE, THRESHOLD, TokenSchedule

SQUARE = ("attention_mask", "position_bias")  # arguments of a block with queries and keys in their last axes


@dataclass
class Pass:
    """One pass through the model: which tokens are still there."""

    real: Tensor | None = None  # [batch, kept], False for padding
    places: Tensor | None = None  # [batch, kept], where they were in the text
    tokens: int = 0  # of the longest text, with padding
    lengths: Tensor | None = None  # [batch], real tokens of each text
    layer: int = -1
    full: Tensor | None = None  # [batch, tokens + 1, width], the last state of every token
    kept: list[Tensor] = field(default_factory=list)  # after each layer, [batch, tokens]
    scores: dict[int, Tensor] = field(default_factory=dict)  # of a layer that drops, NaN for who is not there
    maps: Tensor | None = None
    keys: Tensor | None = None
    sizes: Tensor | None = None  # how many tokens a merged one stands for


class Layer:
    """A hook: what the dropper does at one place of one layer."""

    def __init__(self, dropper: Dropper, name: str, number: int = -1):
        self.dropper, self.name, self.number = dropper, name, number

    def __call__(self, *given: Any) -> Any:
        return None if self.dropper.paused else getattr(self.dropper, self.name)(self.number, *given)


class Dropper:
    """Hooks on a model that drop tokens by a schedule; `choose` replaces it, for training with soft masks."""

    paused = False  # all tokens are read

    def __init__(self, model: PreTrainedModel, schedule: TokenSchedule, choose: Any = None):
        self.schedule, self.choose, self.state = schedule, choose, Pass()
        self.handles: list[Any] = []
        self.attentions: list[Any] = []
        table, base = architecture_of(model), unwrapped(model).base_model
        stack = [block for _, block in blocks(model, table)]
        found = {id(site.block): site for site in sites(model, "heads")}
        check_droppable(model, schedule)
        attention.register()
        self.last, self.inside = len(stack) - 1, bool(table.tokenwise_from)
        self._hook(base, "begin", "pre")
        for number, block in enumerate(stack):
            self._hook(block, "enter", "pre", number)
            if self.inside:
                self._hook(block.get_submodule(table.tokenwise_from), "narrow", "post", number)
            self._hook(block, "leave", "post", number)
            if choose is not None or schedule.needs_maps(number):
                self._listen(found[id(block)].attention)

    def _hook(self, module: nn.Module, name: str, when: str, number: int = -1) -> None:
        register = module.register_forward_pre_hook if when == "pre" else module.register_forward_hook
        self.handles.append(register(Layer(self, name, number), with_kwargs=True))  # type: ignore[operator]

    def _listen(self, module: Any) -> None:
        self.attentions.append((module, module.config, getattr(module, "token_state", None)))
        module.config = LocalConfig(module.config, _attn_implementation=attention.NAME)
        module.token_state = self.state

    def remove(self) -> None:
        """Leave the model as it was."""
        for handle in self.handles:
            handle.remove()
        for module, config, state in self.attentions:
            module.config, module.token_state = config, state
            if state is None:
                del module.token_state

    def begin(self, _: int, base: nn.Module, args: Any, kwargs: Any) -> None:
        """Start a pass: find out which tokens are padding."""
        plain: Any = getattr(type(base), "ungrafted", type(base))
        given = dict(zip(list(signature(plain.forward).parameters)[1:], args)) | kwargs
        mask = given.get("attention_mask")
        if mask is not None and (not isinstance(mask, Tensor) or mask.dim() != 2):
            raise UnsupportedError("tokens are dropped by an attention mask of [batch, tokens], or by none")
        self.state.__dict__.update(vars(Pass()))
        self.state.real = None if mask is None else mask.bool()

    def enter(self, number: int, _: nn.Module, args: Any, kwargs: Any) -> Any:
        """Give a layer the masks and positions of the tokens that are left."""
        state, hidden = self.state, args[0] if args else kwargs["hidden_states"]
        state.layer = number
        if number == 0:
            batch, state.tokens = hidden.shape[:2]
            if state.real is None:
                state.real = torch.ones(batch, state.tokens, dtype=torch.bool, device=hidden.device)
            state.lengths = state.real.sum(1)
            state.places = torch.arange(state.tokens, device=hidden.device).expand(batch, -1)
            state.sizes = state.real.float() if self.schedule.way == MERGE else None
        assert state.places is not None
        if state.full is None:  # no token has left yet; a batch may stay as wide as its longest text
            return None
        names = list(signature(getattr(type(_), "ungrafted", type(_)).forward).parameters)[1:]
        given = dict(zip(names, args)) | kwargs
        for name, value in given.items():
            if name in SQUARE and isinstance(value, Tensor):
                given[name] = self._square(value)
            elif name == "position_embeddings" and isinstance(value, (tuple, list)):
                given[name] = tuple(self._rows(one, 1) for one in value)
            elif name == "position_ids" and isinstance(value, Tensor):
                given[name] = self._rows(value, 1)
        if given.get("attention_mask") is None and state.real is not None and not bool(state.real.all()):
            given["attention_mask"] = self._padding(hidden)
        first = {"hidden_states": given.pop("hidden_states", hidden)}
        return (), first | given

    def narrow(self, number: int, _: nn.Module, args: Any, kwargs: Any, out: Tensor) -> Any:
        """Drop tokens inside a layer, before its feed-forward network."""
        return self._drop(number, out)

    def leave(self, number: int, _: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        """Drop tokens after a layer; after the last one put every token back."""
        hidden = out[0] if isinstance(out, tuple) else out
        if not self.inside and number < self.last:
            hidden = self._drop(number, hidden)
        state = self.state
        assert state.places is not None
        assert state.real is not None
        present = torch.zeros(len(hidden), state.tokens + 1, dtype=torch.bool, device=hidden.device)
        places = torch.where(state.real, state.places, state.tokens)
        state.kept.append(present.scatter_(1, places, True)[:, :-1])
        if number == self.last and state.full is not None and hidden.shape[1] == state.places.shape[1]:
            hidden = self._put(hidden)[:, :-1]
        if number == self.last:  # nothing of the graph stays: a model with such tensors cannot be copied
            state.maps = state.keys = state.sizes = state.full = None
        return (hidden, *out[1:]) if isinstance(out, tuple) else hidden

    def _drop(self, number: int, hidden: Tensor) -> Tensor:
        state = self.state
        assert state.real is not None
        assert state.lengths is not None
        acts = self.choose is not None or self.schedule.acts(number)
        if not acts or state.real.shape[1] != hidden.shape[1]:  # the first token alone: see first_token_only
            return hidden
        if self.choose is None and not self.schedule.needs_scores(number):
            return self._gather(hidden, first_of(state.real))
        score = self._score(number, hidden)
        if score is None:
            return hidden
        if self.choose is not None:
            return self.choose(number, score, state.real, hidden)
        real = state.real
        state.scores[number] = self._in_place(score.detach())
        if self.schedule.way == MERGE:
            assert state.keys is not None
            assert state.sizes is not None
            left = self._counts(number)
            hidden, state.sizes, kept = merge_similar(state.keys, hidden, state.sizes, real, left)
        else:
            kept = choose_tokens(score, real, self.schedule, number, self._counts(number))
        return self._gather(hidden, kept)

    def _score(self, number: int, hidden: Tensor) -> Tensor | None:
        """Return what tokens are chosen by, [batch, tokens]; None where no head is left to look at them."""
        state = self.state
        if self.choose is None and self.schedule.way == FORECAST:
            line = torch.tensor(self.schedule.forecasts[number], dtype=torch.float32, device=hidden.device)
            return (hidden.float() * line[:-1]).sum(-1) + line[-1]  # no product of matrices: never autocast
        if state.maps is None or not state.maps.shape[1]:
            return None
        assert state.real is not None
        maps, state.maps = state.maps, None
        return attention.received(maps, state.real, diagonal=self.schedule.diagonal)

    def _in_place(self, score: Tensor) -> Tensor:
        """Return what every token of the text has, [batch, tokens]; NaN for those that are not there."""
        state = self.state
        assert state.real is not None
        assert state.places is not None
        places = torch.where(state.real, state.places, state.tokens)
        empty = score.new_full((len(score), state.tokens + 1), torch.nan, dtype=torch.float32)
        return empty.scatter(1, places, score.float())[:, :-1]

    def _counts(self, number: int) -> Tensor:
        assert self.state.lengths is not None
        if self.schedule.way == THRESHOLD:
            return self.state.lengths.clamp(max=self.schedule.least)
        counts = [self.schedule.count(number, int(n)) for n in self.state.lengths]
        return torch.tensor(counts, device=self.state.lengths.device)

    def _gather(self, hidden: Tensor, kept: Tensor) -> Tensor:
        """Keep the chosen tokens, in their order; shorter texts are padded behind."""
        state = self.state
        assert state.places is not None
        assert state.real is not None
        longest = int(kept.sum(1).max())
        if longest == kept.shape[1] and bool((kept == state.real).all()):
            return hidden
        state.full = self._put(hidden)
        index = (~kept).long().argsort(dim=1, stable=True)[:, :longest]
        state.places, state.real = state.places.gather(1, index), kept.gather(1, index)
        if state.sizes is not None:
            state.sizes = state.sizes.gather(1, index)
        return hidden.gather(1, index[..., None].expand(-1, -1, hidden.shape[-1]))

    def _put(self, hidden: Tensor) -> Tensor:
        """Return every token's last state, [batch, tokens + 1, width]; padding goes to the last place."""
        state = self.state
        assert state.places is not None
        assert state.real is not None
        if state.full is None:
            return torch.cat([hidden, hidden[:, :1]], 1)
        places = torch.where(state.real, state.places, state.tokens)
        return state.full.scatter(1, places[..., None].expand_as(hidden), hidden)

    def _rows(self, value: Tensor, axis: int) -> Tensor:
        assert self.state.places is not None
        places = self.state.places
        value = value.expand(len(places), *value.shape[1:])
        shape = [len(places), *[1] * (value.dim() - 1)]
        shape[axis] = places.shape[1]
        return value.gather(
            axis,
            places.reshape(shape).expand(
                *[places.shape[1] if i == axis else n for i, n in enumerate(value.shape)]
            ),
        )

    def _square(self, value: Tensor) -> Tensor:
        """Gather the keys, and the queries if there is a row for each, and mask what is padding now."""
        state = self.state
        assert state.real is not None
        value = self._rows(value, value.dim() - 1)
        if value.shape[-2] > 1:
            value = self._rows(value, value.dim() - 2)
        if bool(state.real.all()):
            return value
        real = state.real[:, None, None]
        return (
            value & real
            if value.dtype == torch.bool
            else value.masked_fill(~real, torch.finfo(value.dtype).min)
        )

    def _padding(self, hidden: Tensor) -> Tensor:
        assert self.state.real is not None
        real = self.state.real[:, None, None].expand(-1, -1, self.state.real.shape[1], -1)
        return torch.zeros_like(real, dtype=hidden.dtype).masked_fill(~real, torch.finfo(hidden.dtype).min)


def check_droppable(model: PreTrainedModel, schedule: TokenSchedule) -> None:
    """Raise unless tokens of this model can be dropped, and the schedule has an entry for each layer."""
    table = architecture_of(model)
    layers = len(list(blocks(model, table)))
    if model.config.model_type not in table.drops_tokens:
        known = sorted(name for name, one in architectures().items() if name in one.drops_tokens)
        raise UnsupportedError(
            f"tokens of {model.config.model_type} cannot be dropped: its layers do not read each token by "
            f"itself, or count positions inside. They can of {', '.join(known)}"
        )
    if len(schedule.values) != layers:
        raise InvalidValueError(
            f"the model has {layers} layers, the token schedule {len(schedule.values)} `values`", "values"
        )
    if schedule.way != FORECAST:
        return
    width = unwrapped(model).config.hidden_size
    for number, line in enumerate(schedule.forecasts or ((),) * layers):
        if schedule.needs_scores(number) and len(line) != width + 1:
            raise InvalidValueError(
                f"layer {number} forecasts by {len(line)} numbers, and its states have {width}: fit them by "
                "forecast_tokens(model, schedule, batches)",
                "forecasts",
            )
