"""Passes that begin where the model changed give the very same predictions."""

import random

import pytest
import torch
import toys

from espalier import Mask, sites
from espalier.core.batches import model_inputs
from espalier.engine.cache import ActivationCache
from espalier.engine.gates import gated
from espalier.engine.settled import settled_below
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


@pytest.fixture
def settled():
    """A model of four blocks, batches, and how often each block has run."""
    calm = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = tiny("bert", "AutoModelForSequenceClassification", num_hidden_layers=4, **calm).eval()
    batches = batches_of(toys.examples(60, 2), toys.tokenizer(), "classification", max_length=32)
    blocks, runs = list(dict.fromkeys(site.block for site in sites(model))), [0, 0, 0, 0]

    def count(place, real):
        def forward(*args, **kwargs):
            runs[place] += 1
            return real(*args, **kwargs)

        return forward

    for place, block in enumerate(blocks):
        block.forward = count(place, block.forward)
    return model, batches, blocks, runs


def passes(model, batches):
    with torch.no_grad():
        return torch.cat([model(**model_inputs(batch)).logits for batch in batches])


def test_settled_blocks_run_once_for_each_batch(settled):
    model, batches, blocks, runs = settled
    cache, plain, n = ActivationCache(), passes(model, batches), len(batches)
    for place in (0, 1, 1, 3, 3):  # upwards, as sublayers are chosen
        with settled_below(cache, model, blocks[place], batches):
            assert passes(model, batches).equal(plain)
    assert runs == [3 * n, 5 * n, 5 * n, 6 * n]
    with settled_below(cache, model, blocks[1], batches):  # and from the bottom again
        assert passes(model, batches).equal(plain)
    assert runs[0] == 4 * n


DIFFERENCES = [
    "weight",
    "embedding",
    "watched",
    "other batch",
    "other input",
    "changed input",
    "autocast",
    "mode",
]


@pytest.mark.parametrize("what", DIFFERENCES)
def test_settled_blocks_run_again_where_anything_differs(settled, what):
    model, batches, blocks, runs = settled
    cache, seen, given = ActivationCache(), [], batches
    with settled_below(cache, model, blocks[2], batches):
        passes(model, batches)
    with torch.no_grad():
        if what == "weight":
            blocks[1].output.dense.weight.mul_(3)
        if what == "embedding":
            model.base_model.embeddings.word_embeddings.weight.mul_(3)
        if what == "watched":
            blocks[0].output.dense.register_forward_hook(lambda *_: seen.append(1))
        if what == "other batch":
            given = [{name: value.clone() for name, value in batch.items()} for batch in batches]
        if what == "other input":
            given = [batch | {"position_ids": torch.zeros_like(batch["input_ids"])} for batch in batches]
        if what == "changed input":
            for batch in batches:
                batch["input_ids"][:, 1] = 7
    model.train(what == "mode")
    with torch.autocast("cpu", torch.bfloat16, enabled=what == "autocast"):
        plain = passes(model, given)
        before = list(runs)
        with settled_below(cache, model, blocks[2], batches):
            assert passes(model, given).equal(plain)
    assert runs[0] == before[0] + len(batches)
    assert len(seen) == (2 * len(batches) if what == "watched" else 0)


def test_what_a_gate_gave_is_not_kept(settled):
    model, batches, blocks, _ = settled
    cache, plain, units = ActivationCache(), passes(model, batches), sites(model, "heads")[:1]
    closed = {units[0].name: torch.zeros(units[0].units)}
    with settled_below(cache, model, blocks[2], batches):
        with gated(units, closed):
            assert not passes(model, batches).equal(plain)
        assert passes(model, batches).equal(plain)
        with torch.no_grad():
            blocks[0].output.dense.weight.mul_(3)  # inside, too
        assert not passes(model, batches).equal(plain)


def test_a_body_that_is_called_alone_runs_as_ever(settled):
    model, batches, blocks, _ = settled
    body, inputs = model.base_model, [model_inputs(batch, labels=False) for batch in batches]
    with torch.no_grad():
        plain = [body(**one).last_hidden_state for one in inputs]
        with settled_below(ActivationCache(), model, blocks[2], batches):
            assert body(**inputs[1]).last_hidden_state.equal(plain[1])
            passes(model, batches[:1])
            passes(model, batches[:1])
            assert body(**inputs[1]).last_hidden_state.equal(plain[1])


def test_one_output_of_each_batch_is_kept(settled):
    model, batches, blocks, _ = settled
    cache = ActivationCache()
    with settled_below(cache, model, blocks[3], batches):
        passes(model, batches)
        passes(model, [{name: value.clone() for name, value in batch.items()} for batch in batches])
    assert set(cache.kept) == set(range(len(batches)))
    width = model.config.hidden_size
    assert cache.used == sum(4 * width * batch["input_ids"].numel() for batch in batches)


@pytest.mark.parametrize("kind", KINDS)
def test_settled_blocks_of_every_kind_change_nothing(kind):
    model = tiny(kind, "AutoModelForSequenceClassification").eval()
    batches = batches_of(toys.examples(12, 2), toys.tokenizer(), "classification", max_length=32)
    plain, cache = passes(model, batches), ActivationCache()
    for block in dict.fromkeys(site.block for site in sites(model)):
        for _ in range(2):
            with settled_below(cache, model, block, batches):
                assert passes(model, batches).equal(plain)
    assert bool(cache.kept) == (kind not in ("t5", "bart"))  # decoders read their encoders
