"""Models with adapters: their units are found and gated in place; a cut asks to merge first."""

import pytest
import torch
from torch import nn

from espalier import Batches, Mask, criteria, cut, greedy, masked, prune_steps, sites, zero
from espalier.core.errors import UnsupportedError
from espalier.testing.tiny import inputs, outputs, same, tiny, uneven


class Adapted(nn.Module):
    """A linear layer with a low-rank addition, as peft wraps one."""

    def __init__(self, base_layer: nn.Linear):
        super().__init__()
        self.base_layer = base_layer
        self.down = nn.Linear(base_layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, base_layer.out_features, bias=False)

    weight = property(lambda self: self.base_layer.weight)
    bias = property(lambda self: self.base_layer.bias)

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x))


class Wrapper(nn.Module):
    """What peft puts around a model: `base_model` is the tuner, whose `model` is the model."""

    def __init__(self, model):
        super().__init__()
        self.config = model.config
        self.base_model = nn.Module()
        self.base_model.model = model
        for layer in model.base_model.encoder.layer:
            layer.attention.self.query = Adapted(layer.attention.self.query)
            layer.output.dense = Adapted(layer.output.dense)

    def get_base_model(self):
        return self.base_model.model

    def forward(self, **given):
        return self.base_model.model(**given)

    def merge(self):
        for layer in self.get_base_model().base_model.encoder.layer:
            for owner, name in ((layer.attention.self, "query"), (layer.output, "dense")):
                adapted = getattr(owner, name)
                adapted.base_layer.weight.data += adapted.up.weight @ adapted.down.weight
                setattr(owner, name, adapted.base_layer)
        return self.get_base_model()


@pytest.fixture
def adapted():
    torch.manual_seed(0)
    return Wrapper(tiny("bert", "AutoModelForSequenceClassification"))


def test_units_are_found_and_gated_as_in_the_merged_model(adapted):
    plain = [(s.name, s.units) for s in sites(tiny("bert"))]
    assert [(s.name, s.units) for s in sites(adapted)] == plain
    given, mask = inputs(adapted.get_base_model()), uneven(sites(adapted), 0)
    with masked(adapted, mask):
        want = outputs(adapted, given)
    same(outputs(cut(adapted.merge(), mask), given), want, "merged, then cut")


def test_scores_are_those_of_the_merged_model(adapted):
    given = {**inputs(adapted.get_base_model()), "labels": torch.tensor([0, 1])}
    batches, found = Batches([given]), sites(adapted, "heads")
    taylor = criteria.load("taylor")
    steps = list(prune_steps(adapted, found, taylor, batches, greedy(remove=0.2, units=18)))
    got, merged = taylor(adapted, found, batches), adapted.merge()
    for name, want in taylor(merged, sites(merged, "heads"), batches).items():
        assert torch.allclose(got[name], want, rtol=1e-4)
    again = list(prune_steps(merged, sites(merged, "heads"), taylor, batches, greedy(remove=0.2, units=18)))
    assert all(torch.equal(a[n], b[n]) for a, b in zip(steps, again, strict=True) for n in b)


def test_a_cut_asks_to_merge_first(adapted):
    mask = Mask.without(sites(adapted, "heads"), {0: [1]})
    for refused in (adapted, adapted.get_base_model()):
        with pytest.raises(UnsupportedError):
            cut(refused, mask)
        with pytest.raises(UnsupportedError):
            sites(refused, "weights")
        with pytest.raises(UnsupportedError):
            zero(refused, mask)
