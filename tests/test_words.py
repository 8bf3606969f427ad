"""Word-level corpora in WikiText form: files, vocabulary by frequency, and perplexity per word."""

import math

import pytest
import torch

import espalier
from espalier import tasks
from espalier.core.errors import DataError
from espalier.tasks.batches import encode_blocks
from espalier.tasks.words import make_tokenizer, words_of
from espalier.testing.tiny import tiny

TRAIN = " = Title = \n \n the cat sat on the mat \n the <unk> sat \n"


@pytest.fixture
def corpus(tmp_path):
    for split, text in (("train", TRAIN * 4), ("valid", "the cat sat \n" * 6), ("test", "a mat \n" * 9)):
        (tmp_path / f"wiki.{split}.tokens").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_folder_in_wikitext_form_is_a_language_task(corpus):
    found = tasks.load(corpus)
    assert (found.kind, found.metric) == ("language", "perplexity")
    assert [len(getattr(found, split)) for split in ("train", "validation", "test")] == [16, 6, 9]


def test_words_are_numbered_by_frequency(corpus):
    words = words_of(tasks.load(corpus))
    counts = {"<eos>": 16, "the": 12, "=": 8, "sat": 8, "<unk>": 4, "Title": 4, "cat": 4, "mat": 4, "on": 4}
    assert words.get_vocab() == {word: i for i, word in enumerate(counts)}
    assert words.convert_ids_to_tokens(words("the dog \n \n sat")["input_ids"]) == [
        *("the", "<unk>", "<eos>", "<eos>", "sat")
    ]
    assert sorted(make_tokenizer([TRAIN], most=4).get_vocab()) == ["<eos>", "<unk>", "=", "the"]
    with pytest.raises(DataError):
        make_tokenizer(["", " "])


def test_every_line_ends_with_a_word_of_its_own(corpus):
    task = tasks.load(corpus)
    words = words_of(task)
    ids = [i for row in encode_blocks(task.test, words, max_length=2) for i in row["input_ids"].tolist()]
    assert len(ids) == 26  # of nine lines of three; the rest is less than a block
    assert ids[:6] == words("a mat \n a mat \n")["input_ids"]


def test_a_vocabulary_is_stored_and_made_again_for_another_text(corpus, tmp_path):
    task, place = tasks.load(corpus), tmp_path / "words"
    first = words_of(task, place)
    assert words_of(task, place).get_vocab() == first.get_vocab()
    assert len(words_of(task, place, most=5)) == 5
    assert len(words_of(task, place)) == 9


@pytest.mark.parametrize("kind", ["all_attention", "transformer_xl"])
def test_a_language_model_of_words_learns(corpus, kind):
    task = tasks.load(corpus)
    words = words_of(task)
    model = tiny(kind, "AutoModelForCausalLM", vocab_size=len(words), cutoffs=[5])
    given = {"tokenizer": words, "max_length": 8}
    before = espalier.evaluate(model, task, **given)["validation"]["perplexity"]
    tuned = espalier.train(model, task, epochs=5, batch_size=2, lr=3e-3, **given).model
    after = espalier.evaluate(tuned, task, **given)["validation"]
    assert after["perplexity"] < before
    assert after["perplexity"] == pytest.approx(math.exp(after["loss"]))
    assert torch.isfinite(torch.tensor(after["perplexity"]))


def test_a_vocabulary_that_does_not_fit_the_model_is_refused(corpus):
    task = tasks.load(corpus)
    model = tiny("all_attention", "AutoModelForCausalLM", vocab_size=6, cutoffs=[])
    with pytest.raises(DataError):
        espalier.train(model, task, tokenizer=words_of(task), max_length=8)
