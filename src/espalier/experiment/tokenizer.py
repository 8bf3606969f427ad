"""The tokenizer of a model: whether it has words, and a token to pad with."""

from __future__ import annotations

import copy
from typing import Any

from ..core.errors import DataError, FolderError


def check_vocabulary(name: str, tokenizer: Any) -> None:
    """Raise if a tokenizer has no words: transformers makes one of special tokens where it finds no files."""
    special = set(tokenizer.all_special_tokens)
    if not any(token not in special and any(map(str.isalnum, token)) for token in tokenizer.get_vocab()):
        raise FolderError(
            f"{name} has no tokenizer: its vocabulary holds {len(special)} special tokens and no word. Save "
            "the tokenizer that the model was trained with beside it (tokenizer.json), or pass it as "
            "`tokenizer`",
            name,
        )


def with_padding(model: Any, tokenizer: Any) -> Any:
    """Return a tokenizer that can pad, and name its token in the model's config.

    A classifier that reads the last token finds it by that name, so both must agree.
    """
    config = model.config.get_text_config()
    if tokenizer.pad_token_id is None:
        tokenizer = copy.deepcopy(tokenizer)  # it may be the caller's
        known = config.pad_token_id
        named = None if known is None or known < 0 else tokenizer.convert_ids_to_tokens(known)
        others = (named, tokenizer.eos_token, tokenizer.unk_token, tokenizer.bos_token)
        tokenizer.pad_token = next((token for token in others if token is not None), None)
        if tokenizer.pad_token_id is None:
            raise DataError("the tokenizer has no token to pad with. Give it a pad_token")
        config.pad_token_id = tokenizer.pad_token_id
    elif config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    return tokenizer
