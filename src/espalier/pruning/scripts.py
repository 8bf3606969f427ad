"""The tokens of languages, by the scripts that they are written in (Unicode, CLDR).

A script is more than a language: with "de" every token in Latin letters stays, those of French too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..core.errors import DependencyError, InvalidValueError
from ..core.types import PreTrainedTokenizerBase
from .tokenizer import backend_of, end_of_word, is_byte_level, vocabulary_of

COMMON = ("Zyyy", "Zinh")  # digits, punctuation, accents
MIXED = {
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
    "Hans": ("Hani",),
    "Hant": ("Hani",),
}


def scripts_of(languages: str | Iterable[str]) -> list[str]:
    """Return the scripts of languages: of "de,ru", of "sr-Latn", of "und-Grek" for a script alone.

    >>> scripts_of("de,ja")
    ['Hani', 'Hira', 'Kana', 'Latn']
    """
    try:
        import langcodes
    except ImportError:
        raise DependencyError("langcodes", "vocabulary", "`languages`") from None
    found = set[str]()
    for tag in languages.split(",") if isinstance(languages, str) else languages:
        known = bool(tag.strip()) and langcodes.tag_is_valid(tag.strip())
        script = langcodes.Language.get(tag.strip()).maximize().script if known else None
        if not script:
            raise InvalidValueError(
                f"`languages` are codes as de,fr,zh or sr-Latn; {tag!r} has no script that is known",
                "languages",
            )
        found |= set(MIXED.get(script, (script,)))
    return sorted(found)


def tokens_of_scripts(tokenizer: PreTrainedTokenizerBase, scripts: Iterable[str]) -> set[int]:
    """Return the ids of the tokens whose letters are all of these scripts."""
    import regex

    named = "".join(rf"\p{{Script={name}}}" for name in (*COMMON, *scripts))
    letters = regex.compile(f"[{named}]*")
    backend = backend_of(tokenizer)
    decode = tokenizer.backend_tokenizer.decoder.decode if is_byte_level(backend) else "".join  # type: ignore[attr-defined]
    whole = re.compile("[^\ufffd]*")  # a part of a letter is of no script; what needs it brings it along
    suffix = end_of_word(backend["model"])
    texts = {i: decode([token.removesuffix(suffix)]) for i, token in vocabulary_of(backend).items()}
    return {i for i, text in texts.items() if whole.fullmatch(text) and letters.fullmatch(text)}
