"""Tokenizers of fewer tokens. Text that the kept tokens cover gets the same tokens as before, renumbered.

Why it does, for each kind of tokenizer and a text whose tokens are all kept:

WordPiece   takes the longest token that fits, again and again; the one it took is still there.
BPE         does the merge of the lowest rank, again and again. Every merge on the way to a kept token stays,
            with the parts it needs, and no merge is new: at each step the same one has the lowest rank.
Unigram     takes the path with the best sum of scores; it is still there and no path is new. A character
            without a token of its own would give one through the unknown token, with a score that follows
            from the lowest one: so such tokens of characters in the text stay, and the lowest score.

Special and added tokens, the tokens for single bytes and the letters of the text always stay: a new word is
spelled, not unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..core.errors import InvalidValueError, UnsupportedError
from ..core.types import PreTrainedTokenizerBase

TOKENIZER = "tokenizer.json"
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
MARKS = ("", "##", "▁")  # before a letter: the beginning of a word, or its continuation

Numbers = dict[int, int]  # old id -> new id


def backend_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the tokenizer as tokenizer.json describes it; raise for one that has no such form."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UnsupportedError(
            f"{type(tokenizer).__name__} has no {TOKENIZER}; only fast tokenizers can be trimmed. "
            "AutoTokenizer.from_pretrained converts most of the others; save what it gives"
        )
    found: dict[str, Any] = json.loads(backend.to_str())
    kind = found["model"].get("type")
    if kind not in MODELS:
        raise UnsupportedError(f"a tokenizer of type {kind} cannot be trimmed; {', '.join(MODELS)} can")
    if found["model"].get("continuing_subword_prefix") and kind == "BPE":
        raise UnsupportedError("a BPE tokenizer with a prefix for continuations cannot be trimmed")
    return found


def vocabulary_of(backend: Mapping[str, Any]) -> dict[int, str]:
    """Return the tokens by their ids, added ones among them."""
    vocab = backend["model"]["vocab"]
    own = (
        enumerate(row[0] for row in vocab) if isinstance(vocab, list) else ((i, t) for t, i in vocab.items())
    )
    return dict(own) | {one["id"]: one["content"] for one in backend["added_tokens"]}


def required(tokenizer: PreTrainedTokenizerBase, backend: Mapping[str, Any]) -> set[int]:
    """Return the ids that no text may lose: special and added tokens, single bytes, the lowest score."""
    tokens, model = vocabulary_of(backend), backend["model"]
    numbers = {token: i for i, token in tokens.items()}
    found = {one["id"] for one in backend["added_tokens"]} | set(tokenizer.all_special_ids)
    found |= {i for i, token in tokens.items() if BYTE.fullmatch(token)}
    found |= {numbers[token] for token in (model.get("unk_token"),) if token in numbers}
    _each_special(backend["post_processor"], lambda i: found.add(i) or i)  # type: ignore[func-returns-value]
    if model["type"] == "Unigram":
        found |= {model["unk_id"]} - {None}
        found.add(min(range(len(model["vocab"])), key=lambda i: model["vocab"][i][1]))
    if is_byte_level(backend):
        found |= {i for i, token in tokens.items() if len(token) == 1}
    return {i for i in found if i in tokens}


def is_byte_level(backend: Mapping[str, Any]) -> bool:
    """Return whether letters of tokens stand for bytes."""
    parts = (backend["pre_tokenizer"], backend["decoder"])
    return any('"ByteLevel"' in json.dumps(part) for part in parts)


def letters_of(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> set[str]:
    """Return the characters of texts as the tokenizer's model sees them."""
    backend: Any = tokenizer.backend_tokenizer  # type: ignore[attr-defined]
    normalizer, splitter, found = backend.normalizer, backend.pre_tokenizer, set[str]()
    for text in texts:
        text = normalizer.normalize_str(text) if normalizer else text
        for word, _ in splitter.pre_tokenize_str(text) if splitter else [(text, None)]:
            found.update(word)
    return found


def close(backend: Mapping[str, Any], ids: Iterable[int], letters: Iterable[str] = ()) -> set[int]:
    """Return the ids with all that must stay with them: letters, and the parts that merges put together."""
    tokens, model = vocabulary_of(backend), backend["model"]
    numbers = {token: i for i, token in tokens.items()}
    kept = {i for i in ids if i in tokens}
    if model["type"] == "Unigram":
        kept |= {numbers[x] for i in set(kept) for x in tokens[i] if x in numbers}
    forms = [x + end for x in letters for end in {"", end_of_word(model)}]
    kept |= {numbers[mark + x] for x in forms for mark in MARKS if mark + x in numbers}
    if model["type"] == "BPE":
        ranks = {pair: rank for rank, pair in enumerate(_pairs(model))}
        added = {one["content"] for one in backend["added_tokens"]}
        for token in {tokens[i] for i in kept} - added:
            kept |= {numbers[part] for part in _parts(token, ranks, end_of_word(model)) if part in numbers}
    return kept


def trim_tokenizer(
    tokenizer: PreTrainedTokenizerBase, keep: Iterable[int]
) -> tuple[PreTrainedTokenizerBase, Numbers]:
    """Return a tokenizer of the kept tokens alone, and the new number of each old one.

    Numbers stay in their order. A special token, or one that a kept token is built from, must be among them.
    """
    backend = backend_of(tokenizer)
    tokens, kept = vocabulary_of(backend), set(keep)
    if unknown := sorted(kept - tokens.keys()):
        raise InvalidValueError(f"`keep` has {unknown[0]}; the tokenizer has no token of this number", "keep")
    needed = required(tokenizer, backend)
    lost = sorted(close(backend, kept | needed) - kept)
    if lost:
        shown = ", ".join(repr(tokens[i]) for i in lost[:5]) + (" …" if len(lost) > 5 else "")
        special = "special tokens, or what" if needed - kept else "what"
        raise InvalidValueError(
            f"the vocabulary would lose {special} kept tokens are built from: {shown}. Add them to `keep`",
            "keep",
        )
    numbers = {old: new for new, old in enumerate(sorted(kept))}
    _renumber(backend, numbers)
    with TemporaryDirectory() as place:
        folder = Path(place)
        tokenizer.save_pretrained(folder)
        for file in folder.iterdir():  # other forms of the old vocabulary
            if file.is_file() and file.suffix != ".jinja" and not file.name.endswith("_config.json"):
                file.unlink()
        (folder / TOKENIZER).write_text(json.dumps(backend, ensure_ascii=False), encoding="utf-8")
        try:
            small: Any = type(tokenizer).from_pretrained(folder)
        except Exception as error:  # tokenizers and every class have errors of their own
            raise UnsupportedError(f"the trimmed tokenizer cannot be loaded: {error}") from error
        small.name_or_path = tokenizer.name_or_path
    found = {i: token for token, i in small.get_vocab().items()}
    if found != {new: tokens[old] for old, new in numbers.items()}:
        raise UnsupportedError(
            f"{type(tokenizer).__name__} gives tokens other numbers when it is loaded again, so its "
            "vocabulary cannot be trimmed"
        )
    return small, numbers


def _renumber(backend: dict[str, Any], numbers: Numbers) -> None:
    """Leave only the kept tokens in the description of a tokenizer, under their new numbers."""
    backend["added_tokens"] = [
        one | {"id": numbers[one["id"]]} for one in backend["added_tokens"] if one["id"] in numbers
    ]
    MODELS[backend["model"]["type"]](backend["model"], numbers)
    _each_special(backend["post_processor"], numbers.__getitem__)
    if backend["padding"]:
        backend["padding"]["pad_id"] = numbers.get(backend["padding"]["pad_id"], 0)


def _each_special(part: Any, change: Callable[[int], int]) -> None:
    """Replace every id in a post-processor by what a function gives for it."""
    if isinstance(part, list):
        for one in part:
            _each_special(one, change)
    elif isinstance(part, dict):
        for name, value in part.items():
            if name == "ids":
                part[name] = [change(i) for i in value]
            elif name in ("sep", "cls"):
                part[name] = [value[0], change(value[1])]
            else:
                _each_special(value, change)


def _trim_words(model: dict[str, Any], numbers: Numbers) -> None:
    model["vocab"] = {token: numbers[i] for token, i in model["vocab"].items() if i in numbers}


def _trim_unigram(model: dict[str, Any], numbers: Numbers) -> None:
    model["vocab"] = [row for i, row in enumerate(model["vocab"]) if i in numbers]
    if model["unk_id"] is not None:
        model["unk_id"] = numbers[model["unk_id"]]


def _trim_bpe(model: dict[str, Any], numbers: Numbers) -> None:
    """Keep the merges, in their order, whose two parts and whose result are kept."""
    _trim_words(model, numbers)
    vocab = model["vocab"]
    model["merges"] = [[a, b] for a, b in _pairs(model) if a in vocab and b in vocab and a + b in vocab]


def _pairs(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    both = (one.split(" ", 1) if isinstance(one, str) else one for one in model["merges"])
    return [(first, second) for first, second in both]


def end_of_word(model: Mapping[str, Any]) -> str:
    """Return what a BPE model writes after the last piece of a word."""
    return model.get("end_of_word_suffix") or ""


def _parts(token: str, ranks: Mapping[tuple[str, str], int], suffix: str) -> set[str]:
    """Return every piece on the way to a token; empty for one that merges do not build.

    What happens inside a token does not depend on the text around it: no merge crosses its borders.
    """
    word = token.removesuffix(suffix) if suffix else token
    pieces = list(word)
    if suffix and pieces and token != word:
        pieces[-1] += suffix
    seen = set(pieces)
    while len(pieces) > 1:
        rank, at = min((ranks.get(pair, len(ranks)), i) for i, pair in enumerate(pairwise(pieces)))
        if rank == len(ranks):
            return set()
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        seen.add(pieces[at])
    return seen


MODELS: dict[str, Callable[[dict[str, Any], Numbers], None]] = {
    "WordPiece": _trim_words,
    "WordLevel": _trim_words,
    "BPE": _trim_bpe,
    "Unigram": _trim_unigram,
}
