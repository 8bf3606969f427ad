"""A vocabulary of sixty words, sentences of them, and a small model: all that an experiment needs."""

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from espalier.tasks import Examples, Task
from espalier.testing.tiny import tiny

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
WORDS = [f"{a}{b}" for a in "bdfgklmn" for b in ("a", "e", "i", "o", "u", "ai", "ei")][:56]


def tokenizer():
    vocabulary = {word: i for i, word in enumerate(SPECIAL + WORDS)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "eos": "[SEP]"}
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=64,
        **{f"{name}_token": token for name, token in names.items()},
    )


def sentences(n, seed=0, longest=12):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, longest))) for _ in range(n)]


def examples(n, seed, classes=2):
    draw = random.Random(-seed)
    return Examples(tuple(sentences(n, seed)), None, tuple(draw.randrange(classes) for _ in range(n)))


def task(kind="classification"):
    if kind == "language":
        parts = [Examples(tuple(sentences(60, seed))) for seed in (1, 2, 3)]
        return Task("toy", *parts, kind=kind, metric="perplexity")
    return Task("toy", examples(40, 1), examples(60, 2), examples(50, 3), classes=("0", "1"))


def toy_session(kind="bert", target="heads", also=(), own_calibration=None, **options):
    """A tiny model on the toy task; `options` are those of a session."""
    from espalier.experiment.model import OpenedModel
    from espalier.experiment.session import make_session

    language = kind == "gpt2"
    model = tiny(kind, "AutoModelForCausalLM" if language else "AutoModelForSequenceClassification")
    chosen = task("language" if language else "classification")
    settings = {"calibration": 16, "max_length": 8 if language else 32, **options}
    opened = OpenedModel("toy", model, tokenizer())
    return make_session(opened, chosen, target, also, own_calibration, settings)


def folder_with_model(path: Path, kind="bert", labels=2):
    """A model and its tokenizer as a user would have them on disk."""
    torch.manual_seed(0)
    model = tiny(kind, "AutoModelForSequenceClassification", num_labels=labels)
    model.save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def table_of(path: Path, n=160, seed=5, classes=2):
    """A TSV of sentences and answers."""
    made = examples(n, seed, classes)
    lines = [f"{text}\t{int(label)}" for text, label in zip(made.texts, made.labels)]
    path.write_text("\n".join(["sentence\tlabel", *lines]) + "\n", encoding="utf-8")
    return path
