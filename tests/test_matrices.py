"""Which matrices can be pruned, and how sparsity is counted."""

import pytest
import torch
from calibration import CLASSIFIER, close, given_to

from espalier import Batches, Mask, criteria, masked, remove_lowest, sites, sparsity, zero
from espalier.architectures.sites import ALSO
from espalier.testing.tiny import inputs, tiny


def test_embeddings_head_and_norms_only_when_asked_for():
    model = tiny("bert", CLASSIFIER)
    plain = [s.name for s in sites(model, "weights")]
    more = sites(model, "weights", also=ALSO)
    new = {s.name: s for s in more if s.name not in plain}
    assert [s.name for s in more if s.name in plain] == plain
    assert {n for n, s in new.items() if s.reads == "ids"} == {
        f"embeddings/{kind}_embeddings" for kind in ("word", "position", "token_type")
    }
    assert {n for n, s in new.items() if s.reads == "hidden"} == {"pooler/dense", "classifier"}
    assert len([n for n, s in new.items() if s.reads == "channels"]) == 1 + 2 * 3
    matrices = sum(s.units for s in more)
    biases = sum(p.numel() for n, p in model.named_parameters() if n.endswith("bias"))
    assert matrices + biases == sum(p.numel() for p in model.parameters())


def test_a_tied_matrix_comes_once():
    model = tiny("gpt2", "AutoModelForCausalLM")
    assert model.lm_head.weight is model.transformer.wte.weight
    assert not [s for s in sites(model, "weights", also=("head",)) if "lm_head" in s.name]
    found = sites(model, "weights", also=ALSO)
    weights = [id(s.linear.weight) for s in found]
    assert len(weights) == len(set(weights))
    # Both of its uses are in its gradient.
    ids = inputs(model)["input_ids"]
    data = Batches([{"input_ids": ids, "labels": ids}])
    got = criteria.load("snip")(model, found, data)["wte"]
    model(input_ids=ids, labels=ids).loss.backward()
    weight = model.lm_head.weight
    want = (weight.grad * weight).detach().abs()
    close(got / got.sum(), want / want.sum(), rtol=1e-4, atol=1e-9)


def test_masked_is_zero_in_embeddings_head_and_norms():
    model = tiny("bert", CLASSIFIER)
    found = sites(model, "weights", also=ALSO)
    mask = remove_lowest(criteria.load("random")(model, found), 0.3)
    given = given_to(model)
    whole = model(**given).logits
    with masked(model, mask):
        want = model(**given).logits
    assert torch.equal(model(**given).logits, whole)
    assert not torch.allclose(want, whole, atol=1e-3)
    zero(model, mask)
    assert torch.equal(model(**given).logits, want)
    assert sum(int((s.linear.weight == 0).sum()) for s in found) == sum(
        int((~m).sum()) for m in mask.values()
    )
    norm = model.bert.embeddings.LayerNorm
    with masked(model, Mask({"embeddings/LayerNorm": torch.zeros(48)})):  # a mask of norms alone
        assert (norm.weight == 0).all()
    assert (norm.weight != 0).any()


def test_compression_in_three_ways():
    model = tiny("bert", CLASSIFIER)
    found = sites(model, "weights")
    assert sparsity(model).compression == {"matrices": 1.0, "model": 1.0, "bitmap": 1.0}
    zero(model, remove_lowest(criteria.load("magnitude")(model, found), 0.8))
    got = sparsity(model)
    weights, every = sum(s.units for s in found), sum(p.numel() for p in model.parameters())
    removed = weights - round((1 - 0.8) * weights)
    assert (got.zeros, got.weights, got.all_zeros, got.parameters) == (removed, weights, removed, every)
    assert got.of_matrices == removed / weights
    assert got.of_model == removed / every
    assert got.compression["matrices"] == pytest.approx(5, rel=1e-4)
    assert got.compression["model"] == every / (every - removed)
    # Each matrix pays a bit a weight, or stays dense if that is less.
    bits = sum(min(32 * p.numel(), 32 * int((p != 0).sum()) + p.numel()) for p in model.parameters())
    assert got.compression["bitmap"] == pytest.approx(32 * every / bits)
    assert sparsity(model, sites(model, "weights", also=("head",))).weights > weights


def test_the_whole_of_distilbert_is_not_five_times_smaller():
    """At 80 % of its 36 matrices: twice, and a little less in a file."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    with torch.device("meta"):
        model = DistilBertForSequenceClassification(DistilBertConfig())
    weights = sum(s.units for s in sites(model, "weights"))
    every = sum(p.numel() for p in model.parameters())
    assert (weights, every) == (42_467_328, 66_955_010)
    from espalier.evaluation.cost import Sparsity

    removed = round(0.8 * weights)
    counted = Sparsity(removed, weights, removed, every, 32 * every, 32 * (every - removed) + weights)
    assert {k: round(v, 2) for k, v in counted.compression.items()} == {
        "matrices": 5.0,
        "model": 2.03,
        "bitmap": 1.95,
    }
