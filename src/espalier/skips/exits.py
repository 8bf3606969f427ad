"""Early exits: an example leaves as soon as a classifier after some layer is confident.

The classifiers read one token after each layer: the first, or of a decoder, where only the last token has
read the others, the last that is not padding. The model itself is not changed. An example that has left is
removed from the batch, so that later layers compute only the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.sites import blocks, unwrapped
from ..architectures.table import architecture_of
from ..core.batches import Batches, model_inputs, require_batches
from ..core.errors import DataError, FormatError, InvalidValueError, UnsupportedError
from ..core.types import PreTrainedModel
from ..engine.passes import frozen_eval
from ..engine.token_places import dropper_of
from .rows import ROWS

STEPS = 60  # of L-BFGS; a classifier of a few hundred numbers converges in a second


class Exits(dict[int, tuple[Tensor, Tensor]]):
    """A weight [classes, width] and a bias [classes] for each layer that an example may leave after."""

    def save(self, path: str | Path) -> None:
        """Write them as safetensors."""
        from safetensors.torch import save_file

        pairs = {
            f"{n}.{k}": t.contiguous() for n, one in self.items() for k, t in zip(("weight", "bias"), one)
        }
        save_file(pairs, str(path))

    @classmethod
    def load(cls, path: str | Path) -> Exits:
        """Read what `save` wrote."""
        from safetensors.torch import load_file

        try:
            found = load_file(str(path))
            numbers = sorted({int(name.partition(".")[0]) for name in found})
            out = cls({n: (found[f"{n}.weight"], found[f"{n}.bias"]) for n in numbers})
        except (OSError, ValueError, KeyError) as error:
            raise FormatError(f"{path} holds no exits: {error}", path) from None
        except Exception as error:  # safetensors has an error of its own
            raise FormatError(f"{path} cannot be read: {error}", path) from None
        if any(w.dim() != 2 or b.shape != w.shape[:1] for w, b in out.values()):
            raise FormatError(f"{path} holds no exits: see the shapes", path)
        return out


def fit_exits(model: PreTrainedModel, batches: Batches, *, penalty: float = 1e-3) -> Exits:
    """Return classifiers after every layer but the last, fitted to labels on frozen hidden states.

    `penalty` is that of the squared weights. Batches hold labels of classes; the model is left as it is.
    """
    require_batches(batches, "an early exit")
    if not penalty >= 0:
        raise InvalidValueError(f"`penalty` is a number from 0; got {penalty}", "penalty")
    stack = _stack(model)
    states: dict[int, list[Tensor]] = {number: [] for number in range(len(stack) - 1)}
    labels, token = [], None
    with torch.no_grad(), frozen_eval(model), ExitStack() as hooks:
        for number in states:

            def see(_: nn.Module, args: Any, out: Any, number: int = number) -> None:
                states[number].append(_at(_hidden(out), token).float())

            hooks.enter_context(stack[number].register_forward_hook(see))
        for batch in batches:
            if "labels" not in batch or batch["labels"].dim() != 1:
                raise DataError("an early exit is fitted to `labels`, one class for each example")
            token = _token(model, batch)
            model(**model_inputs(batch, labels=False))
            labels.append(batch["labels"])
    truth, classes = torch.cat(labels), int(model.config.num_labels)
    return Exits({n: _fit(torch.cat(rows), truth, classes, penalty) for n, rows in states.items()})


def _fit(x: Tensor, truth: Tensor, classes: int, penalty: float) -> tuple[Tensor, Tensor]:
    middle, width = x.mean(0), x.std(0).clamp(min=1e-6)
    scaled = (x - middle) / width
    weight = torch.zeros(classes, x.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Any:
        optimiser.zero_grad()
        found = nn.functional.cross_entropy(scaled @ weight.T + bias, truth) + penalty * weight.square().sum()
        found.backward()
        return found

    with torch.enable_grad():
        optimiser.step(loss)
    plain = (weight / width).detach()
    return plain, (bias - plain @ middle).detach()


@contextmanager
def exiting_early(model: PreTrainedModel, exits: Exits, confidence: float) -> Iterator[list[int]]:
    """Let examples leave where the probability of a class reaches `confidence`.

    Yields a list of how many examples left after each layer, the last one included, over all passes inside.

    >>> with exiting_early(model, fit_exits(model, batches), 0.95) as left:
    ...     logits = model(**batch).logits
    """
    if not 0 < confidence <= 1:
        raise InvalidValueError(
            f"`confidence` is a probability above 0 up to 1; got {confidence}", "confidence"
        )
    stack = _stack(model)
    if dropper_of(model) is not None:
        raise UnsupportedError(
            "the model drops tokens: examples that leave early are not tracked through that"
        )
    if not exits or not set(exits) <= set(range(len(stack) - 1)):
        raise InvalidValueError(
            f"`exits` are after layers 0 to {len(stack) - 2}; got {sorted(exits)}", "exits"
        )
    base = unwrapped(model).base_model
    state = _Examples(exits, confidence, len(stack), base)
    with ExitStack() as hooks:
        hooks.callback(ROWS.pop, base, None)
        hooks.enter_context(model.register_forward_pre_hook(state.begin, with_kwargs=True))
        for number, block in enumerate(stack):
            hooks.enter_context(block.register_forward_pre_hook(state.enter(number), with_kwargs=True))
            hooks.enter_context(block.register_forward_hook(state.leave(number)))
            hooks.callback(delattr, block, "forward")
            block.forward = state.run(block.forward)  # type: ignore[method-assign]
        hooks.enter_context(model.register_forward_hook(state.answer))
        yield state.left


class _Examples:
    """Which examples of a batch are still there, and the logits of those that left."""

    def __init__(self, exits: Exits, confidence: float, layers: int, base: nn.Module):
        self.exits, self.confidence, self.last, self.base = exits, confidence, layers - 1, base
        self.left = [0] * layers
        self.rows, self.size, self.tuples = torch.empty(0), 0, False
        self.logits: dict[int, Tensor] = {}
        self.states: list[tuple[Tensor, Tensor]] = []
        self.token: Tensor | None = None  # that the classifiers read, of each example; None: the first

    def begin(self, model: Any, args: Any, kwargs: Any) -> None:
        self.token = _token(model, {"input_ids": args[0], **kwargs} if args else kwargs)

    def enter(self, number: int) -> Any:
        def narrow(_: nn.Module, args: Any, kwargs: Any) -> Any:
            if number == 0:
                hidden = args[0] if args else kwargs["hidden_states"]
                self.size, self.rows = len(hidden), torch.arange(len(hidden), device=hidden.device)
                self.logits, self.states = {}, []
                ROWS[self.base] = self.rows
                return None
            if len(self.rows) == self.size:
                return None
            first = args[:1]  # the hidden states, which have been narrowed
            rest = {k: v if k == "hidden_states" else self._rows(v) for k, v in kwargs.items()}
            return (*first, *(self._rows(one) for one in args[1:])), rest

        return narrow

    def run(self, forward: Any) -> Any:
        def skip(*args: Any, **kwargs: Any) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            if len(hidden):
                out = forward(*args, **kwargs)
                self.tuples = isinstance(out, tuple)
                return out
            return (hidden,) if self.tuples else hidden  # nobody is left: attention cannot be of nothing

        return skip

    def leave(self, number: int) -> Any:
        def narrow(_: nn.Module, args: Any, out: Any) -> Any:
            hidden = _hidden(out)
            if number in self.exits:
                weight, bias = (t.to(hidden) for t in self.exits[number])
                logits = _at(hidden, self.token, self.rows) @ weight.T + bias
                done = logits.softmax(-1).amax(-1) >= self.confidence
                for row, one in zip(self.rows[done].tolist(), logits[done]):
                    self.logits[row] = one
                self.states.append((self.rows[done], hidden[done]))
                self.rows, hidden = self.rows[~done], hidden[~done]
                self.left[number] += int(done.sum())
                ROWS[self.base] = self.rows
            if number == self.last:
                self.left[number] += len(self.rows)
                rows = torch.cat([self.rows, *(rows for rows, _ in self.states)])
                hidden = torch.cat([hidden, *(states for _, states in self.states)])[rows.argsort()]
            return (hidden, *out[1:]) if isinstance(out, tuple) else hidden

        return narrow

    def answer(self, _: nn.Module, args: Any, out: Any) -> Any:
        if self.logits:
            found = out.logits.clone()
            rows = torch.tensor(list(self.logits), device=found.device)
            out.logits = found.index_copy(0, rows, torch.stack(list(self.logits.values())).to(found))
        return out

    def _rows(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() > 1 and len(value) == self.size:
            return value[self.rows]
        return type(value)(map(self._rows, value)) if isinstance(value, (tuple, list)) else value


def _stack(model: PreTrainedModel) -> list[nn.Module]:
    if not hasattr(model, "num_labels") or model.base_model is unwrapped(model):
        raise UnsupportedError(
            f"{type(model).__name__} is no classifier, so there is nothing to leave early with"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedError("examples leave encoders early, not models with a decoder")
    return [block for _, block in blocks(model, architecture_of(model))]


def _token(model: PreTrainedModel, batch: Mapping[str, Any]) -> Tensor | None:
    """Return the place of the last token of each example that is not padding, [batch]; None: the first."""
    if not _is_causal(model):
        return None
    mask, given = batch.get("attention_mask"), batch.get("input_ids", batch.get("inputs_embeds"))
    if mask is None or mask.dim() != 2:
        assert given is not None
        return torch.full((len(given),), given.shape[1] - 1, device=given.device)
    return (mask.bool() * torch.arange(1, mask.shape[1] + 1, device=mask.device)).argmax(1)


def _is_causal(model: PreTrainedModel) -> bool:
    """Whether tokens read only those before them: the type of the model predicts the next word alone."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

    config = model.config
    after = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and type(config) not in MODEL_FOR_MASKED_LM_MAPPING
    return after or bool(getattr(config, "is_decoder", False))


def _at(hidden: Tensor, token: Tensor | None, rows: Tensor | None = None) -> Tensor:
    """Return what each example holds at its token, [batch, width]; `rows` are the examples that are left."""
    if token is None:
        return hidden[:, 0]
    places = token.to(hidden.device) if rows is None else token.to(hidden.device)[rows]
    return hidden[torch.arange(len(hidden), device=hidden.device), places]


def _hidden(out: Any) -> Tensor:
    found: Tensor = out[0] if isinstance(out, tuple) else out
    return found
