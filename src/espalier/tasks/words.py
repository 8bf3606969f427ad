"""Word-level vocabularies of running text in WikiText form: words between spaces, unknown ones as <unk>.

Every line ends with <eos>, empty ones too, and <eos> is predicted like a word: perplexity is per word and end
of line. Words are numbered by frequency in the training text, as an adaptive softmax needs them; equally
frequent ones by their letters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..core.errors import DataError
from ..core.types import PreTrainedTokenizerBase
from ..io.files import read_json, write_json
from .task import Task

UNKNOWN, END = "<unk>", "<eos>"
RECORD = "words.json"  # beside the tokenizer: what it was made from


def words_of(
    task: Task, folder: str | Path | None = None, *, most: int | None = None
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a task's training text, with the `most` frequent words or all.

    With a folder it is stored there, and read from there while text and `most` are the same.
    """
    if folder is None:
        return make_tokenizer(task.train.texts, most)
    place, made_from = Path(folder), {"train": task.train.fingerprint(), "most": most}
    if (place / RECORD).is_file() and read_json(place / RECORD) == made_from:
        from transformers import PreTrainedTokenizerFast

        stored: Any = PreTrainedTokenizerFast.from_pretrained(place)
        return stored
    found = make_tokenizer(task.train.texts, most)
    found.save_pretrained(place)
    write_json(place / RECORD, made_from)
    return found


def make_tokenizer(texts: Iterable[str], most: int | None = None) -> PreTrainedTokenizerBase:
    """Return a tokenizer of the words in some lines."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    counts: Counter[str] = Counter({UNKNOWN: 0, END: 0})
    for line in texts:
        counts.update(line.split())
        counts[END] += 1
    if len(counts) == 2:
        raise DataError("the training text has no words")
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    kept = [word for word in ordered if word not in (UNKNOWN, END)]
    chosen = {UNKNOWN, END, *(kept if most is None else kept[: max(0, most - 2)])}
    numbers = {word: i for i, word in enumerate(word for word in ordered if word in chosen)}
    made = Tokenizer(models.WordLevel(numbers, unk_token=UNKNOWN))
    made.normalizer = normalizers.Replace("\n", f" {END} ")
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    out: Any = PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token=UNKNOWN,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
    )
    return out
