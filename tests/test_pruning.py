"""One loop for every schedule."""

from itertools import pairwise

import pytest
import torch

from espalier import (
    Batches,
    Mask,
    criteria,
    greedy,
    masked,
    plan_of,
    prune_heads,
    prune_steps,
    remove_lowest,
    schedule,
    sites,
)
from espalier.pruning.loop import WorkingCopy
from espalier.testing.tiny import inputs, tiny


def classifier(kind="bert"):
    return tiny(kind, "AutoModelForSequenceClassification")


def batches(model):
    given = inputs(model, batch=4, tokens=7)
    given.pop("use_cache", None)
    return Batches([{**given, "labels": torch.arange(4) % 2}])


def order(masks, found):
    """The units in the order in which they were removed."""
    before, out = Mask.ones(found), []
    for mask in masks:
        out.append([(n, i) for n in mask for i in (before[n] & ~mask[n]).nonzero().flatten().tolist()])
        before = mask
    return out


@pytest.mark.parametrize(
    "steps", [[0.5], greedy(0.5, 18), schedule(0.5, 4, "cubic"), schedule(0.5, 3, "linear")]
)
@pytest.mark.parametrize("name", ["gnorm", "taylor", "entropy", "magnitude", "random"])
def test_every_schedule_ends_where_it_should_and_nothing_returns(name, steps):
    model = classifier()
    found = sites(model, "heads")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    masks = list(prune_steps(model, found, criteria.load(name), batches(model), steps))
    assert len(masks) == len(steps)
    assert sum(int(m.sum()) for m in masks[-1].values()) == 9
    assert all((a[k] >= b[k]).all() for a, b in pairwise(masks) for k in a)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert model.config.__dict__.get("quantization_config") is None


@pytest.mark.parametrize("kind", ["bert", "albert", "gpt2", "llama", "t5"])
@pytest.mark.parametrize("name", ["gnorm", "taylor"])
def test_greedy_is_rescoring_after_every_cut(kind, name):
    """Against the plain way: gates on the whole model, one head at a time, to the last."""
    model = classifier(kind)
    found = [s for s in sites(model, "heads") if s.spec.name == "heads"]
    data, score = batches(model), criteria.load(name)
    units = sum(s.units for s in found)
    fast = order(prune_steps(model, found, score, data, greedy(1, units)), found)
    mask, slow = Mask.ones(found), []
    for removed in range(1, units + 1):
        with masked(model, mask):
            scores = score(model, found, data)
        after = remove_lowest(scores, removed / units, mask=mask)
        slow += order([mask, after], found)[1:]
        mask = after
    assert fast == slow
    assert all(len(step) == 1 for step in fast)


def test_one_shot_is_static_and_reverse_is_the_other_end():
    model = classifier()
    found, data = sites(model, "heads"), batches(model)
    score = criteria.load("gnorm")
    static = score(model, found, data)
    flat = sorted((v.item(), n, i) for n, s in static.items() for i, v in enumerate(s))
    (mask,) = prune_steps(model, found, score, data, [0.5])
    assert {(n, i) for _, n, i in flat[:9]} == set(order([mask], found)[0])
    (mask,) = prune_steps(model, found, score, data, [0.5], reverse=True)
    assert {(n, i) for _, n, i in flat[9:]} == set(order([mask], found)[0])


def test_greedy_and_static_are_not_the_same_thing():
    model = classifier()
    found, data = sites(model, "heads"), batches(model)
    score = criteria.load("gnorm")
    static = score(model, found, data)
    flat = sorted((v.item(), n, i) for n, s in static.items() for i, v in enumerate(s))
    again = order(prune_steps(model, found, score, data, greedy(1, 18)), found)
    assert again[0] == [flat[0][1:]]  # the first choice is the same
    assert [step[0] for step in again] != [(n, i) for _, n, i in flat]


def test_what_cannot_be_cut_is_gated():
    model = tiny("olmo2", "AutoModelForSequenceClassification")
    found = sites(model, "heads")
    masks = list(prune_steps(model, found, criteria.load("taylor"), batches(model), greedy(0.5, 9)))
    assert sum(int(m.sum()) for m in masks[-1].values()) == round(4.5)
    weights = sites(model, "weights")
    (mask,) = prune_steps(model, weights, criteria.load("magnitude"), None, [0.75])
    assert mask.kept == pytest.approx(0.25, abs=1e-4)


def test_a_cut_model_is_pruned_further():
    model = classifier()
    prune_heads(model, {0: [0, 1], 1: range(6)})
    found = sites(model, "heads")
    masks = list(prune_steps(model, found, criteria.load("gnorm"), batches(model), greedy(0.5, 10)))
    assert [len(m) for m in masks[-1].values()] == [4, 0, 6]
    assert sum(int(m.sum()) for m in masks[-1].values()) == 5
    assert plan_of(model).keep["encoder.layer.0/heads"] == [2, 3, 4, 5]


def test_options_reach_the_criterion():
    model = classifier()
    found = sites(model, "heads")
    score = criteria.load("random")
    a, b, c = (next(prune_steps(model, found, score, None, [0.5], seed=s)) for s in (1, 1, 2))
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert any(not torch.equal(a[n], c[n]) for n in a)


def test_a_model_spread_over_devices_is_gated():
    """There is no room for a second copy to cut, and what is gated gives the same."""
    model = tiny("bert")
    found = sites(model, "heads")
    mask = Mask.without(found, {0: [1], 2: [0, 3]})
    with WorkingCopy(model, found).at(mask) as (small, _), torch.no_grad():
        want = small(input_ids=torch.tensor([[1, 5, 9]])).last_hidden_state
    model.hf_device_map = {"embeddings": 0, "encoder": 1}
    spread = WorkingCopy(model, found)
    assert not spread.cuttable
    with spread.at(mask) as (same, _), torch.no_grad():
        assert same is model
        got = same(input_ids=torch.tensor([[1, 5, 9]])).last_hidden_state
    torch.testing.assert_close(got, want)


def test_the_shrinking_copy_shares_what_no_cut_touched():
    """The second model costs its cut projections alone, and cutting it leaves the first as it is."""
    model = classifier()
    found = sites(model, "heads")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    rest = WorkingCopy(model, found)
    with rest.at(Mask.without(found, {1: [0]})) as (small, _):
        own = dict(model.named_parameters())
        new = {name for name, p in small.named_parameters() if p is not own[name]}
    assert new
    assert all(".layer.1.attention." in name for name in new)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_model_that_was_trained_meanwhile_is_copied_anew():
    """Or a gradual run would score projections from before the training."""
    model = classifier()
    found = sites(model, "heads")
    rest, mask = WorkingCopy(model, found), Mask.without(found, {1: [0]})
    data = batches(model)[0]
    with rest.at(mask):
        pass
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    with rest.at(mask) as (small, _), torch.no_grad():
        got = small(**data).logits
    with masked(found, mask), torch.no_grad():
        want = model(**data).logits
    torch.testing.assert_close(got, want)
