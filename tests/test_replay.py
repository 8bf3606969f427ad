"""Passes that begin where the model changed give the very same answers."""

import random

import pytest
import torch
import toys

from espalier import Mask
from espalier.engine.cache import Replay
from espalier.evaluation.predictions import answer
from espalier.pruning.working_copy import WorkingCopy
from espalier.testing.tiny import tiny

KINDS = ["bert", "roberta", "distilbert", "gpt2", "llama", "deberta-v2", "modernbert", "t5", "bart"]


@pytest.mark.parametrize(
    ("kind", "budget"), [*((kind, 2**30) for kind in KINDS), ("bert", 6000), ("bert", 0)]
)
def test_replayed_passes_are_bit_for_bit_the_plain_ones(kind, budget):
    """Down a random order and then another: blocks change one by one, and all at once in between."""
    batches = toys.toy_bench().validation
    model = tiny(kind, "AutoModelForSequenceClassification")
    from espalier import sites

    found = sites(model, "heads")
    blocks = list(dict.fromkeys(site.block for site in found))
    units = [(i, u) for i, site in enumerate(found) for u in range(site.units)]
    rest, memory, ran = WorkingCopy(model, found), Replay(budget), []
    for seed in (1, 2):
        random.Random(seed).shuffle(units)
        for k in range(0, len(units) + 1, 3):
            gone = units[:k]
            mask = Mask.without(found, {i: [u for j, u in gone if j == i] for i in range(len(found))})
            with rest.at(mask) as (small, living):
                plain = answer(small, batches)
                blocks = list(dict.fromkeys(site.block for site in living))
                state = [frozenset(g for g in gone if living[g[0]].block is b) for b in blocks]
                with memory.over(blocks, state) as now:
                    got = answer(small, batches, begin=now.begin)
                    ran.append(now.start)
                assert not any("forward" in block.__dict__ for block in blocks)
            assert (got.losses == plain.losses).all()
            assert (got.predictions == plain.predictions).all()
    assert memory.used <= budget
    if budget == 2**30 and kind in ("bert", "gpt2", "llama"):
        assert memory.sound
        assert max(ran) > 0  # something was really left out
    if kind == "t5":
        assert not memory.sound  # its blocks hand the position bias on


def test_a_failed_pass_leaves_the_model_alone():
    bench = toys.toy_bench()
    blocks = list(dict.fromkeys(site.block for site in bench.sites))
    with pytest.raises(ZeroDivisionError), Replay().over(blocks, [0] * len(blocks)):
        raise ZeroDivisionError
    assert not any("forward" in block.__dict__ for block in blocks)
    with torch.no_grad():
        bench.model(input_ids=torch.tensor([[1, 5, 2]]))
