"""Scores by how far the predictions move: of whole units, and of what the others do not predict."""

from types import SimpleNamespace

import pytest
import torch

from espalier import Batches, criteria, sites
from espalier.core.errors import InvalidValueError
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
    return torch.func.jvp(lambda x: loss(SimpleNamespace(logits=x), {}), (logits,), (move,))[1]


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
