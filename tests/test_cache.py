"""Passes that begin where the model changed give the very same predictions."""

import random

import pytest
import torch
import toys

from espalier import Mask, sites
from espalier.engine.cache import ActivationCache
from espalier.evaluation.predictions import predict
from espalier.pruning.loop import WorkingCopy
from espalier.tasks.batches import batches_of
from espalier.testing.tiny import tiny

KINDS = ["bert", "roberta", "distilbert", "gpt2", "llama", "deberta-v2", "modernbert", "t5", "bart"]


@pytest.mark.parametrize(
    ("kind", "budget"), [*((kind, 2**30) for kind in KINDS), ("bert", 6000), ("bert", 0)]
)
def test_cached_passes_are_bit_for_bit_the_plain_ones(kind, budget):
    """In a random order and then another: blocks change one by one, and all together in between."""
    batches = batches_of(toys.examples(60, 2), toys.tokenizer(), "classification", max_length=32)
    model = tiny(kind, "AutoModelForSequenceClassification")
    found = sites(model, "heads")
    units = [(i, u) for i, site in enumerate(found) for u in range(site.units)]
    copy, cache, started = WorkingCopy(model, found), ActivationCache(budget), []
    for seed in (1, 2):
        random.Random(seed).shuffle(units)
        for k in range(0, len(units) + 1, 3):
            removed = units[:k]
            mask = Mask.without(found, {i: [u for j, u in removed if j == i] for i in range(len(found))})
            with copy.at(mask) as (small, kept):
                plain = predict(small, batches)
                blocks = list(dict.fromkeys(site.block for site in kept))
                states = [frozenset(u for u in removed if kept[u[0]].block is b) for b in blocks]
                with cache.over(blocks, states) as now:
                    got = predict(small, batches, on_batch=now.begin)
                    started.append(now.start)
                assert not any("forward" in block.__dict__ for block in blocks)
            assert (got.losses == plain.losses).all()
            assert (got.values == plain.values).all()
    assert cache.used <= budget
    if budget == 2**30 and kind in ("bert", "gpt2", "llama"):
        assert cache.usable
        assert max(started) > 0  # some blocks really did not run
    if kind == "t5":
        assert not cache.usable  # its blocks pass the position bias on


def test_a_failed_pass_leaves_the_model_as_it_was():
    model = tiny("bert")
    blocks = list(dict.fromkeys(site.block for site in sites(model)))
    with pytest.raises(ZeroDivisionError), ActivationCache().over(blocks, [0] * len(blocks)):
        raise ZeroDivisionError
    assert not any("forward" in block.__dict__ for block in blocks)
    with torch.no_grad():
        model(input_ids=torch.tensor([[1, 5, 2]]))
