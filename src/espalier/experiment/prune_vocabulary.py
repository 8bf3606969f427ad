"""Trim tokenizer and embeddings to the tokens of a corpus or of languages; the model, and what is covered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ..core.errors import DataError, InvalidValueError, UnknownNameError, UnsupportedError
from ..core.progress import OnProgress, Progress, ignore
from ..pruning.scripts import scripts_of, tokens_of_scripts
from ..pruning.tokenizer import letters_of
from ..pruning.vocabulary import MULTIPLE, complete, trim_vocabulary
from ..storage.save import save
from ..tasks.lines import count_lines
from ..tasks.task import Examples
from .assessment import SPLITS, assess
from .model import OpenedModel
from .session import Session, SessionOptions, make_session

VOCABULARY = "vocabulary"
OPTIONS = ("corpus", "languages", "min_count", "multiple", "overwrite")
CHUNK = 1000  # texts that are tokenised together


def check_vocabulary(more: Mapping[str, Any], **others: Any) -> None:
    """Raise for what says nothing about a vocabulary, before anything is loaded."""
    for name, value in others.items():
        if value:
            raise InvalidValueError(
                f"the vocabulary is trimmed to a `corpus` or to `languages`; leave `{name}` out", name
            )
    for name in more:
        if name not in (*OPTIONS, *SessionOptions.__annotations__):
            raise UnknownNameError("option", name, [*OPTIONS, *SessionOptions.__annotations__], name)
    if more.get("min_count", 1) > 1 and more.get("languages") and not more.get("corpus"):
        raise InvalidValueError("`min_count` counts tokens of a `corpus`, not of `languages`", "min_count")
    if more.get("languages"):
        scripts_of(more["languages"])
    if more.get("corpus"):
        count_lines(Path(more["corpus"]))


def prune_vocabulary(
    session: Session,
    options: SessionOptions,
    *,
    corpus: str | Path | None = None,
    languages: str | None = None,
    min_count: int = 1,
    multiple: int = MULTIPLE,
    folder: Path | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = ignore,
) -> tuple[Any, dict[str, Any]]:
    """Keep the tokens of a corpus, of languages, or of both; by default those of the training texts."""
    model, tokenizer = session.model, session.tokenizer
    texts: Sequence[str] = () if languages else list(_texts(session.task.train))
    if corpus is not None:
        texts = count_lines(Path(corpus))
    ids, letters = _count_tokens(tokenizer, texts, min_count, on_progress)
    if not ids and not languages:
        raise DataError(f"{corpus or 'the training split'} has no text, so no token would be kept")
    scripts = scripts_of(languages) if languages else []
    if scripts:
        ids |= tokens_of_scripts(tokenizer, scripts)
    kept = complete(model, tokenizer, ids, letters, multiple=multiple)
    on_progress(Progress("trimming"))
    small, small_tokenizer, numbers = trim_vocabulary(model, tokenizer, kept)
    known = texts if not languages else chain(texts, *(_texts(getattr(session.task, x)) for x in SPLITS))
    checked = _check_same_tokens(tokenizer, small_tokenizer, numbers, known, on_progress)
    on_progress(Progress("measuring before and after"))
    before = assess(session, model, folder=session.folder, base=True)
    opened = OpenedModel(session.name, small, small_tokenizer, session.stored, session.pruned_also)  # type: ignore[arg-type]
    after_session = make_session(opened, session.task, VOCABULARY, options=options)
    size = model.config.get_text_config().vocab_size
    facts: dict[str, Any] = {
        "model": session.name,
        "task": session.task.name,
        "target": VOCABULARY,
        "metric": session.task.metric,
        "corpus": _describe(corpus, scripts),
        "removed": 1 - len(numbers) / size,
        "units": size,
        "tokens": {"before": size, "after": len(numbers), "texts checked": checked},
        "coverage": {x: _coverage(tokenizer, getattr(session.task, x), numbers) for x in SPLITS},
        "before": before,
    }
    session.round_to_stored(small)
    after = assess(after_session, small)
    if folder is not None:
        origin = {
            **session.origin(),
            **{name: facts[name] for name in ("target", "corpus", "tokens", "coverage")},
        }
        with session.in_stored_dtype(small):
            where: Any = dict(overwrite=overwrite, output=f"prune of {session.name}")
            save(small, folder, tokenizer=small_tokenizer, origin=origin, **where)
        after["bytes"] = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return small, facts | {"after": after, "folder": folder and str(folder)}


def _texts(examples: Examples) -> Iterator[str]:
    yield from examples.texts
    yield from examples.pairs or ()


def _describe(corpus: str | Path | None, scripts: list[str]) -> str:
    named = [Path(corpus).name] if corpus else []
    named += [f"scripts {', '.join(scripts)}"] if scripts else []
    return " and ".join(named) or "the training split"


def _encoded(tokenizer: Any, texts: Iterable[str]) -> Iterator[tuple[tuple[str, ...], list[list[int]]]]:
    left = iter(texts)
    while some := tuple(islice(left, CHUNK)):
        yield some, tokenizer(list(some), add_special_tokens=False, verbose=False)["input_ids"]


def _count_tokens(
    tokenizer: Any, texts: Sequence[str], least: int, on_progress: OnProgress
) -> tuple[set[int], set[str]]:
    """Return the tokens that texts use at least so often, and their letters."""
    counted, letters, done = Counter[int](), set[str](), 0
    for some, rows in _encoded(tokenizer, texts):
        counted.update(chain.from_iterable(rows))
        letters |= letters_of(tokenizer, some)
        done += len(some)
        on_progress(Progress("reading texts", done, len(texts)))
    return {i for i, n in counted.items() if n >= least}, letters


def _check_same_tokens(
    whole: Any, small: Any, numbers: Mapping[int, int], texts: Iterable[str], on_progress: OnProgress
) -> int:
    """Return how many texts the tokens cover; raise if one of them gets other tokens than before."""
    on_progress(Progress("checking the tokenizer"))
    covered = 0
    for some, rows in _encoded(whole, texts):
        for text, old, new in zip(some, rows, small(list(some), add_special_tokens=False)["input_ids"]):
            if all(i in numbers for i in old):
                covered += 1
                if new != [numbers[i] for i in old]:
                    raise UnsupportedError(
                        f"the trimmed tokenizer gives other tokens for {text[:60]!r}: nothing was written"
                    )
    return covered


def _coverage(tokenizer: Any, examples: Examples, numbers: Mapping[int, int]) -> dict[str, Any]:
    """Return which share of the tokens of a split is kept, and of how many texts all are."""
    tokens = covered = texts = whole = 0
    for _, rows in _encoded(tokenizer, _texts(examples)):
        for row in rows:
            kept = sum(i in numbers for i in row)
            tokens, covered, texts, whole = (
                tokens + len(row),
                covered + kept,
                texts + 1,
                whole + (kept == len(row)),
            )
    return {"tokens": tokens, "share": covered / tokens if tokens else None, "texts": texts, "whole": whole}
