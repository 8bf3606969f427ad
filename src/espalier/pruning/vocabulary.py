"""Fewer tokens: rows of embeddings and output head are removed together with those of the tokenizer.

Which tensors have a row for each token is not looked up by name: a model is built, without memory, from its
config with one token more, and what has another shape then is one of them. So tied and untied heads, biases
of a head and final_logits_bias are all found. The result is an ordinary model with a smaller `vocab_size`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ..core.errors import UnsupportedError
from ..core.types import PreTrainedModel, PreTrainedTokenizerBase
from .tokenizer import Numbers, backend_of, close, required, trim_tokenizer, vocabulary_of

MULTIPLE = 64  # of the number of tokens
# entries of configs that hold ids: of tokens that must stay, and of tokens that may be gone
ONE = ("_token_id", "_token_ids", "_token_index")
MANY = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "force_words_ids", "forced_decoder_ids")


def trim_vocabulary(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, keep: Iterable[int]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Numbers]:
    """Return a model and a tokenizer of the kept tokens alone, and the new number of each old one.

    `complete` adds what must be among them. On text that they cover, ids map one to one, and the outputs are
    those of the whole model: hidden states bit for bit, logits at the kept tokens too, where the matrix
    product does not round by the number of columns.
    """
    kept = set(keep)
    _check_rows(model, vocabulary_of(backend_of(tokenizer)), kept)
    small, numbers = trim_tokenizer(tokenizer, kept)
    return trim_model(model, numbers), small, numbers


def complete(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    ids: Iterable[int],
    letters: Iterable[str] = (),
    *,
    multiple: int = MULTIPLE,
) -> set[int]:
    """Return ids with all that must stay with them: special tokens, bytes, letters, parts of merges.

    They are filled up to a multiple with the lowest of the others: products of such matrices are faster, and
    round as those of the whole model do, which those with a few columns too many may not.
    """
    backend = backend_of(tokenizer)
    named = {i for config in configs_of(model) for _, value in ids_in(config) for i in _flat(value)}
    kept = close(backend, {*ids, *required(tokenizer, backend), *named}, letters)
    rows = range(model.config.get_text_config().vocab_size)
    left = sorted(i for i in vocabulary_of(backend).keys() - kept if i in rows)
    goal = min(-(-len(kept) // multiple) * multiple, len(kept) + len(left))
    while left and len(kept) < goal:
        some = left[: goal - len(kept)]
        while len(closed := close(backend, kept.union(some))) > goal and len(some) > 1:
            some = some[: len(some) // 2]
        kept = closed if len(closed) <= goal else kept
        left = [i for i in left[len(some) :] if i not in kept]
    return kept


def trim_model(model: PreTrainedModel, numbers: Numbers) -> PreTrainedModel:
    """Return a model with the rows of the kept tokens alone; a token of the config must be kept."""
    from transformers.initialization import no_init_weights

    rows = torch.tensor(sorted(numbers, key=numbers.__getitem__))
    config, state = copy.deepcopy(model.config), dict(model.state_dict())
    for name, axis in vocabulary_axes(model).items():
        state[name] = state[name].index_select(axis, rows.to(state[name].device))
    old = config.get_text_config().vocab_size
    for one in _with_parts(config):
        for name, value in list(vars(one).items()):
            if name.endswith("vocab_size") and value == old:
                setattr(one, name, len(rows))
        renumber(one, numbers)
    with no_init_weights():
        small: Any = type(model)._from_config(config, dtype=model.dtype)
    small.load_state_dict(state)
    if getattr(model, "generation_config", None) is not None:
        small.generation_config = copy.deepcopy(model.generation_config)
        renumber(small.generation_config, numbers)
    small.name_or_path = model.name_or_path
    return small.to(model.device).train(model.training)


def vocabulary_axes(model: PreTrainedModel) -> dict[str, int]:
    """Return which axis of which tensor has an entry for each token."""
    whole, wider = (_shapes_at(model, extra) for extra in (0, 1))
    old = model.config.get_text_config().vocab_size
    found = {name: _axis(whole[name], wider[name]) for name in whole if whole[name] != wider.get(name)}
    clustered = [name for name, axis in found.items() if axis is None or whole[name][axis] != old]
    if clustered or not found:
        what = f"{clustered[0]} has no axis of {old}" if clustered else "no tensor follows its vocab_size"
        raise UnsupportedError(f"the vocabulary of {model.config.model_type} cannot be trimmed: {what}")
    return {name: axis for name, axis in found.items() if axis is not None}


def _shapes_at(model: PreTrainedModel, extra: int) -> dict[str, tuple[int, ...]]:
    config = copy.deepcopy(model.config)
    config.get_text_config().vocab_size += extra
    with torch.device("meta"):
        built = type(model)(config)
    return {name: tuple(t.shape) for name, t in built.state_dict().items()}


def _axis(a: tuple[int, ...], b: tuple[int, ...]) -> int | None:
    differ = [i for i, (x, y) in enumerate(zip(a, b)) if x != y]
    return differ[0] if len(differ) == 1 else None


def _check_rows(model: PreTrainedModel, tokens: Mapping[int, str], kept: set[int]) -> None:
    size = model.config.get_text_config().vocab_size
    if beyond := sorted(i for i in kept if i >= size):
        raise UnsupportedError(
            f"the tokenizer gives {tokens.get(beyond[0], '?')!r} the number {beyond[0]}, but the model has "
            f"{size} rows: use its own tokenizer"
        )


def configs_of(model: PreTrainedModel) -> Iterator[Any]:
    """Yield all configs of a model that may name tokens."""
    yield from _with_parts(model.config)
    if getattr(model, "generation_config", None) is not None:
        yield model.generation_config


def _with_parts(config: Any) -> Iterator[Any]:
    yield config
    yield from (part for name in config.sub_configs if (part := getattr(config, name, None)) is not None)


def ids_in(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a config that name tokens which must stay."""
    for name, value in vars(config).items():
        if name.endswith(ONE) and isinstance(value, (int, list, tuple)):
            yield name, value


def renumber(config: Any, numbers: Numbers) -> None:
    """Replace the ids of tokens in a config; of lists of words that may not appear, those that still can."""
    for name, value in list(ids_in(config)):
        setattr(config, name, _mapped(value, numbers))
    for name in MANY:
        if isinstance(value := getattr(config, name, None), (list, tuple)):
            left = [one for one in value if all(i in numbers for i in _flat(one))]
            setattr(config, name, _mapped(left, numbers) or None)


def _mapped(value: Any, numbers: Numbers) -> Any:
    if isinstance(value, (list, tuple)):
        return [_mapped(one, numbers) for one in value]
    return numbers.get(value, value)  # −1 and ids that never were tokens mean what they meant


def _flat(value: Any) -> Iterator[int]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one)
    elif isinstance(value, int):
        yield value
