"""Units whose inputs are zeroed write constants; absorbed, their removal is exact. Second orders."""

import copy

import pytest
import torch
from torch import nn

from espalier import Batches, Mask, Scores, criteria, cut, remove_lowest, sites
from espalier.architectures.site import WeightSite
from espalier.core.errors import UnknownNameError, UnsupportedError
from espalier.pruning.absorption import absorb, zero_inputs
from espalier.testing.tiny import inputs, outputs, same, tiny


def half(model):
    return Mask({s.name: torch.arange(s.units) % 2 > 0 for s in sites(model)})


def at_tokens(model, batch):
    """Return the hidden states, without those of padding: there a causal model attends to nothing."""
    found, mask = outputs(model, batch)[0], batch.get("attention_mask")
    return found if mask is None or mask.shape != found.shape[:2] else found[mask.bool()]


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "vit", "t5", "llama", "modernbert", "opt"])
def test_removal_after_absorption_is_the_zeroed_model(model_type):
    """Also of padded batches, gated networks and layers without biases."""
    torch.manual_seed(0)
    model = tiny(model_type)
    batch = inputs(model)
    zeroed, alone, mask = copy.deepcopy(model), copy.deepcopy(model), half(model)
    zero_inputs(zeroed, mask)
    absorb(model, mask, batch)
    cut(model, mask, report=False)
    want = at_tokens(zeroed, batch)
    same([at_tokens(model, batch)], [want], model_type)
    cut(alone, mask, report=False)
    biased = any(getattr(s.module(role), "bias", None) is not None for s in sites(model) for role in s.places)
    assert torch.allclose(at_tokens(alone, batch), want, atol=1e-4) != biased


def test_what_is_not_constant_or_not_there_is_refused(monkeypatch):
    model = tiny("bert")
    with pytest.raises(UnknownNameError):
        absorb(model, Mask({"x/heads": torch.zeros(2).bool()}), inputs(model))
    monkeypatch.setattr("espalier.pruning.absorption.zero_inputs", lambda *_: None)
    with pytest.raises(UnsupportedError):
        absorb(model, half(model), inputs(model))


@pytest.mark.parametrize("reason", ["not constant", "no bias"])
def test_a_refused_model_keeps_its_weights_and_modes(reason, monkeypatch):
    model = tiny("bert")
    model.encoder.layer[0].eval()
    if reason == "no bias":
        model.encoder.layer[1].output.dense.bias = None
    else:
        monkeypatch.setattr("espalier.pruning.absorption.CLOSE", -1.0)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    with pytest.raises(UnsupportedError):
        absorb(model, half(model), inputs(model))
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    assert modes == [module.training for module in model.modules()]


# ------------------------------------------------------------------------------------------ second order


class Quadratic(nn.Module):
    """loss = ½ (w − c)ᵀ diag(h) (w − c)"""

    def __init__(self, w, c, h):
        super().__init__()
        self.layer = nn.Linear(len(w), 1, bias=False)
        self.layer.weight.data = w.clone()[None]
        self.c, self.h = c, h

    def loss(self):
        return 0.5 * (self.h * (self.layer.weight[0] - self.c).square()).sum()


def test_of_a_quadratic_loss_the_second_order_is_exact():
    """L(w without wᵢ) − L(w) = −gᵢwᵢ + ½hᵢwᵢ²"""
    torch.manual_seed(0)
    w, c, h = torch.randn(6).double(), torch.randn(6).double(), torch.rand(6).double()
    model = Quadratic(w, c, h)
    before = model.loss()
    (g,) = torch.autograd.grad(before, model.layer.weight)
    for i in range(6):
        predicted = -g[0, i] * w[i] + 0.5 * h[i] * w[i] ** 2
        without = Quadratic(w.index_fill(0, torch.tensor(i), 0), c, h).loss()
        assert (without - before).item() == pytest.approx(predicted.item(), rel=1e-12)


class Softmax(nn.Module):
    """A linear classifier with the interface of a model of transformers."""

    def __init__(self, inputs, classes):
        super().__init__()
        self.layer = nn.Linear(inputs, classes, bias=False).double()

    def forward(self, x, labels):
        from types import SimpleNamespace

        logits = self.layer(x)
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels), logits=logits)


def test_at_the_optimum_the_fisher_diagonal_is_that_of_the_hessian():
    """With labels drawn from the model's own predictions both are equal in the limit of many examples."""
    torch.manual_seed(0)
    model, n = Softmax(3, 2), 20000
    x = torch.randn(n, 3, dtype=torch.float64)
    with torch.no_grad():
        labels = torch.multinomial(model.layer(x).softmax(-1), 1)[:, 0]
    site = WeightSite("layer", model.layer, "hidden")
    fisher = criteria.load("fisher")(model, [site], Batches([{"x": x, "labels": labels}]))["layer"]

    def loss(w):
        return nn.functional.cross_entropy(x @ w.T, labels)

    hessian = torch.autograd.functional.hessian(loss, model.layer.weight.detach())
    diagonal = torch.stack([hessian[i, j, i, j] for i in range(2) for j in range(3)]).view(2, 3)
    assert torch.allclose(fisher / fisher.sum(), diagonal / diagonal.sum(), rtol=0.05)


def test_the_threshold_of_the_slide():
    """|w| < 1 is removed: the fraction that is below a threshold, then exactly these."""
    w = torch.tensor([[2.1, -0.3, 0.0, 1.5], [-0.9, 1.2, 0.4, -3.0], [0.2, -1.1, 0.8, 0.5]])
    below = w.abs() < 1
    mask = remove_lowest(Scores({"m": w.abs()}), below.float().mean().item())
    assert torch.equal(mask["m"], ~below)
