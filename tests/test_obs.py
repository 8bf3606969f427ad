"""Scores by how far the predictions move: of whole units, and of what the others do not predict."""

from types import SimpleNamespace

import pytest
import torch

from espalier import Batches, criteria, sites
from espalier.core.errors import DataError, InvalidValueError
from espalier.criteria._predictions import prediction_losses
from espalier.testing.tiny import inputs, tiny


def classifier(**more):
    return tiny("bert", "AutoModelForSequenceClassification", **more).double()


def batches(model):
    given = inputs(model, batch=6, tokens=7)
    given.pop("use_cache", None)
    return Batches([given | {"labels": torch.arange(6) % 2}])


def moved(loss, logits, move):
    """Return by how much a loss of logits changes, to first order; its probabilities stay."""
    at = logits.clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(SimpleNamespace(logits=at), {"input_ids": torch.tensor([[5, 6]])}), at)
    return (grad * move).sum()


def variance(logits, move, temperature):
    shares = (logits / temperature).softmax(-1)
    return (shares * move.square()).sum(-1) - (shares * move).sum(-1).square()


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_losses_add_up_to_the_variance_of_the_change(classes, temperature):
    """Whatever the logits move by, at the temperature's probabilities; one loss less than classes."""
    draw = torch.Generator().manual_seed(0)
    losses = prediction_losses(classes, Batches(), 8, 2, temperature)
    assert len(losses) == classes - 1
    for _ in range(3):
        logits, move = (torch.randn(1, classes, generator=draw, dtype=torch.float64) for _ in range(2))
        found = sum(moved(loss, logits, move).square() for loss in losses)
        torch.testing.assert_close(found, variance(logits, move, temperature)[0])


def test_drawn_labels_give_the_variance_in_the_mean():
    draw = torch.Generator().manual_seed(1)
    logits, move = (torch.randn(1, 12, generator=draw, dtype=torch.float64) for _ in range(2))
    losses = prediction_losses(12, Batches(), 8, 4000, 4.0)
    found = sum(float(moved(loss, logits, move).square()) for loss in losses)
    assert found == pytest.approx(float(variance(logits, move, 4.0)), rel=0.1)


def test_labels_are_not_needed_and_taken_when_asked():
    model = classifier()
    found, data, obs = sites(model, "heads", "neurons"), batches(model), criteria.load("obs")
    bare = Batches([{name: value for name, value in data[0].items() if name != "labels"}])
    assert not obs.needs_labels
    given, without, of_labels = (
        obs(model, found, data),
        obs(model, found, bare),
        obs(model, found, data, labels=True),
    )
    for site in found:
        torch.testing.assert_close(given[site.name], without[site.name])
    assert any(not torch.allclose(of_labels[s.name], without[s.name], rtol=0.01) for s in found)


def test_a_sure_prediction_counts_at_a_high_temperature():
    """The divergence at 1 hardly sees what moves a sure prediction."""
    model = classifier()
    found, data, obs = sites(model, "heads"), batches(model), criteria.load("obs")
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([0.0, 12.0]))
    sums = [sum(float(v.sum()) for v in obs(model, found, data, temperature=t).values()) for t in (1, 4)]
    assert sums[1] > 100 * sums[0]


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"draws": 0}])
@pytest.mark.parametrize("name", ["obs", "kl"])
def test_wrong_options_are_named(name, wrong):
    model = classifier()
    with pytest.raises(InvalidValueError) as caught:
        criteria.load(name)(model, sites(model, "heads"), batches(model), **wrong)
    assert caught.value.parameter == next(iter(wrong))


@pytest.mark.parametrize("name", ["obs", "kl"])
def test_drawn_labels_do_not_depend_on_batches_and_padding(name):
    """Of many classes labels are drawn for each example by its own text."""
    model = classifier(num_labels=12)
    found, draw = sites(model, "heads", "neurons"), torch.Generator().manual_seed(0)
    ids = torch.randint(4, 60, (6, 7), generator=draw)
    lengths = torch.tensor([7, 4, 7, 5, 3, 6])
    mask = (torch.arange(7) < lengths[:, None]).long()
    together = Batches([{"input_ids": ids * mask, "attention_mask": mask}])
    alone = Batches(
        [
            {"input_ids": ids[i : i + 1, :n], "attention_mask": mask[i : i + 1, :n]}
            for i, n in enumerate(lengths)
        ]
    )
    want, got = (criteria.load(name)(model, found, data) for data in (together, alone))
    for site in found:
        torch.testing.assert_close(got[site.name], want[site.name], rtol=1e-6, atol=1e-12)
    other = criteria.load(name)(model, found, together, draws=3)
    assert any(not torch.allclose(other[s.name], want[s.name], rtol=0.01) for s in found)


def test_padding_of_a_model_of_tokens_does_not_matter():
    """Where every token is predicted the loss tells which count."""
    model = tiny("bert", "AutoModelForTokenClassification", num_labels=5).double()
    found, draw = sites(model, "heads"), torch.Generator().manual_seed(0)
    ids = torch.randint(4, 60, (3, 7), generator=draw)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids % 5}
    wide = {name: torch.nn.functional.pad(value, (0, 9)) for name, value in given.items()}
    wide["labels"][:, 7:] = -100
    short, long = (criteria.load("obs")(model, found, Batches([one])) for one in (given, wide))
    for site in found:
        torch.testing.assert_close(short[site.name], long[site.name])


def test_a_model_that_predicts_nothing_is_refused_unless_there_is_a_loss():
    model = tiny("bert", "AutoModel").double()
    found, given = sites(model, "heads"), inputs(model, batch=3, tokens=7)
    data = Batches([given], loss=lambda out, batch: out.last_hidden_state.square().mean())
    for name in ("obs", "kl"):
        with pytest.raises(DataError):
            criteria.load(name)(model, found, data)
    scores = criteria.load("obs")(model, found, data, labels=True)
    assert all((value > 0).all() for value in scores.values())
