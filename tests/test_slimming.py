"""Gates under L1: a unit that does nothing is pulled to zero, one that the loss needs stays up."""

import pytest
import torch

from espalier import Batches, criteria, sites
from espalier.core.errors import DataError
from espalier.engine.gates import gated


def some(n=3):
    dice = torch.Generator().manual_seed(0)
    return Batches(
        {
            "input_ids": torch.randint(4, 50, (6, 9), generator=dice),
            "labels": torch.randint(0, 2, (6,), generator=dice),
        }
        for _ in range(n)
    )


@pytest.mark.parametrize("target", ["heads", "neurons"])
def test_idle_units_are_pulled_to_zero(bert, target):
    found = sites(bert, target)
    site = found[0]
    for unit in (1, 2):
        channels = site.index("write")[unit]
        site.module("write").weight.data.index_fill_(site.axis("write"), channels, 0.0)
    options = {"strength": 1e-4, "lr": 0.1, "passes": 10}
    scores = criteria.load("slimming")(bert, found, some(), **options)
    assert scores[site.name][1] < 0.1
    assert scores[site.name][2] < 0.1
    assert scores[site.name].max() > 0.5  # held up by the loss
    if target == "heads":  # of so many neurons, others do next to nothing too
        assert set(scores[site.name].argsort()[:2].tolist()) == {1, 2}


def test_one_step_by_hand(bert):
    """Adam's first step has the size of the learning rate and the sign of gradient + strength."""
    found, batches = sites(bert, "heads"), some(1)
    bert.eval()
    with gated(found) as gates:
        grads = torch.autograd.grad(bert(**batches[0]).loss, list(gates.values()))
    got = criteria.load("slimming")(bert, found, batches, strength=0.01, lr=0.2, passes=1)
    for site, grad in zip(found, grads):
        want = 1 - 0.2 * (grad + 0.01).sign()
        torch.testing.assert_close(got[site.name], want.double(), rtol=1e-4, atol=1e-4)


def test_it_needs_data(bert):
    with pytest.raises(DataError):
        criteria.load("slimming")(bert, sites(bert))
