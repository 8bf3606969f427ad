"""Use a pruned classifier like any other model: python examples/use_a_pruned_model.py demo/small

Plain transformers reads the folder after `import espalier`.
"""

import sys

import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import espalier

SENTENCES = (
    "A warm, funny and quietly moving film.",
    "Two hours of my life that I will never get back.",
    "The jokes fall flat, but the ending is a delight.",
)


def main(folder):
    transformers.logging.disable_progress_bar()
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kept = {site.name: site.units for site in espalier.sites(model, "heads")}
    print(f"{folder}: {sum(kept.values())} heads kept, by layer: {list(kept.values())}")
    batch = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    with torch.inference_mode():
        chances = model(**batch).logits.softmax(-1)[:, 1]
    for sentence, chance in zip(SENTENCES, chances):
        print(f"  {chance:4.0%} positive  {sentence}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "demo/small")
