"""Trim the vocabulary of a model of XLM-R's shape: bytes before and after, and what is covered.

    python benchmarks/vocabulary.py FOLDER

Its Unigram tokenizer is trained on the word lists of the package wordfreq (pip install wordfreq), in all of
its languages; the weights are random, the shapes of the blocks are those of xlm-roberta-base. The texts are
English reviews. Writes results/vocabulary.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "vocabulary.json"
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
TEST = 100  # examples of a random model: they show that nothing breaks, not how good it is


def train_tokenizer(size: int, words: int) -> Any:
    """Return a tokenizer as XLM-R's, trained on the most frequent words of every language."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast
    from wordfreq import available_languages, top_n_list

    languages = sorted(available_languages())
    one = Tokenizer(models.Unigram())
    one.normalizer, one.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    one.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=SPECIAL, unk_token="<unk>")
    lists = [top_n_list(language, words) for language in languages]
    one.train_from_iterator((word for words in lists for word in words), trainer)
    one.add_special_tokens(["<mask>"])
    one.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(bos="<s>", cls="<s>", eos="</s>", sep="</s>", pad="<pad>", unk="<unk>", mask="<mask>")
    tokens = {f"{name}_token": token for name, token in names.items()}
    return PreTrainedTokenizerFast(tokenizer_object=one, model_max_length=512, **tokens), languages


def main() -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, XLMRobertaConfig

    import espalier

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=120_000)
    parser.add_argument("--words", type=int, default=8_000, help="of every language")
    asked = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    source = asked.folder / "xlm-r-shaped"
    if not (source / "config.json").exists():
        tokenizer, languages = train_tokenizer(asked.tokens, asked.words)
        print(len(tokenizer), "tokens of", len(languages), "languages", file=sys.stderr)
        config = XLMRobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=514, type_vocab_size=1)
        model = AutoModelForSequenceClassification.from_config(config)
        espalier.save(model, source, tokenizer=tokenizer)
    out: dict[str, Any] = {}
    for name, more in {"English reviews": {}, "languages=en,de": {"languages": "en,de"}}.items():
        folder = asked.folder / name.replace(" ", "-").replace("=", "-").replace(",", "-")
        found = espalier.prune(
            source,
            "demo",
            target="vocabulary",
            folder=folder,
            validation=TEST,
            test=TEST,
            overwrite=True,
            **more,
        ).to_dict()
        sizes = {when: found[when]["bytes"] for when in ("before", "after")}
        tokenizers = {
            when: (place / "tokenizer.json").stat().st_size
            for when, place in {"before": source, "after": folder}.items()
        }
        out[name] = {"tokens": found["tokens"], "coverage": found["coverage"]}
        out[name] |= {"bytes of weights": sizes, "bytes of tokenizer.json": tokenizers}
        out[name]["removed"] = 1 - sizes["after"] / sizes["before"]
    RESULTS.write_text(json.dumps(out, indent=1) + "\n")
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
