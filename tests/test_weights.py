"""Criteria of single weights against loops, differences and hand-made cases."""

import pytest
import torch
from calibration import (
    CALIBRATED,
    CLASSIFIER,
    FAMILIES,
    classifier,
    close,
    given_to,
    gradients,
    one_by_one,
    padded,
    split,
)
from torch import nn

from espalier import Batches, criteria, gated, remove_lowest, sites
from espalier.architectures.site import WeightSite
from espalier.architectures.table import architectures
from espalier.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from espalier.criteria.movement import Movement
from espalier.testing.tiny import inputs, tiny


@pytest.mark.parametrize("kind", FAMILIES)
def test_snip_and_movement_are_the_products_of_gradient_and_weight(kind):
    model = classifier(kind)
    found, given = sites(model, "weights"), given_to(classifier(kind))
    data = split(given, (4, 2))
    want = {n: -g for n, g in gradients(model, found, given).items()}
    want = {s.name: want[s.name] * s.linear.weight.detach() for s in found}
    whole = sum(w.abs().sum() for w in want.values())
    signed = criteria.load("snip")(model, found, data, signed=True)
    share = criteria.load("snip")(model, found, data)
    moved = criteria.load("movement")(model, found, data, lr=0.5)
    for name, change in want.items():
        close(signed[name], change / whole)
        close(share[name], change.abs() / whole)
        close(moved[name], 3 * change, atol=1e-6 * change.abs().max().item())  # steps of 0.5, six of them
    assert sum(s.sum() for s in share.values()).item() == pytest.approx(1)


def test_signed_snip_is_the_rise_of_the_loss_when_a_weight_begins_to_shrink():
    model = classifier("gpt2")
    site, given, step = sites(model, "weights")[0], given_to(classifier("gpt2")), 1e-4
    share = criteria.load("snip")(model, [site], Batches([given]), signed=True)[site.name]
    slopes = gradients(model, [site], given)[site.name] * site.linear.weight.detach()
    got = share * slopes.abs().sum()
    signs = set()
    for place in (divmod(int(i), 144) for i in got.flatten().argsort()[[0, 1, 3000, -2, -1]]):
        losses = []
        for scale in (1 - step, 1 + step):
            keep = site.linear.weight.data[place].clone()
            site.linear.weight.data[place] *= scale
            losses.append(model(**given).loss.item())
            site.linear.weight.data[place] = keep
        rise = (losses[0] - losses[1]) / (2 * step)
        assert got[place].item() == pytest.approx(rise, rel=1e-3, abs=1e-11)
        signs.add(rise > 0)
    assert signs == {True, False}


@pytest.mark.parametrize("kind", [*FAMILIES, "llama", "distilbert"])
def test_fisher_is_the_mean_of_squares_of_single_gradients(kind):
    model = classifier(kind)
    found, given = sites(model, "weights"), given_to(classifier(kind))
    want = {s.name: torch.zeros(s.shape, dtype=torch.float64) for s in found}
    for alone in one_by_one(given):
        for name, grad in gradients(model, found, alone).items():
            want[name] += grad.square() / 6
    got = criteria.load("fisher")(model, found, split(given, (4, 2)))
    half = criteria.load("obd")(model, found, split(given, (4, 2)))
    for site in found:
        close(got[site.name], want[site.name])
        close(half[site.name], want[site.name] * site.linear.weight.detach().square() / 2)
    # The square of a batch's mean gradient is another thing, which must not have been computed.
    mean = gradients(model, found, given)
    assert any(not torch.allclose(mean[n].square(), want[n], rtol=0.5, atol=0) for n in want)


@pytest.mark.parametrize("kind", ["bart", "albert"])
def test_fisher_of_embeddings_norms_and_heads_of_models(kind):
    model = classifier(kind, **({"num_labels": 2} if kind == "bart" else {}))
    found = sites(model, "weights", also=("embeddings", "head", "norms"))
    assert {s.reads for s in found} >= {"ids", "channels", "hidden"}
    given = given_to(model, n=3)
    if kind == "bart":  # its classifier wants an end in every row
        given["attention_mask"] = torch.ones_like(given["attention_mask"])
        given["input_ids"] = inputs(model, batch=3, tokens=7)["input_ids"]
        given["decoder_input_ids"] = given["input_ids"].flip(0)
    want = {s.name: torch.zeros(s.shape, dtype=torch.float64) for s in found}
    for alone in one_by_one(given):
        for name, grad in gradients(model, found, alone).items():
            want[name] += grad.square() / 3
    got = criteria.load("fisher")(model, found, Batches([given]))
    for site in found:
        close(got[site.name], want[site.name])


@pytest.mark.parametrize("units", ["heads", "neurons"])
def test_fisher_of_units_is_that_of_their_gates(units):
    model = classifier()
    found, given = sites(model, units), given_to(model)
    want = {s.name: torch.zeros(s.units, dtype=torch.float64) for s in found}
    for alone in one_by_one(given):
        with gated(found) as gates:
            grads = torch.autograd.grad(model(**alone).loss, list(gates.values()))
        for site, grad in zip(found, grads):
            want[site.name] += grad.square() / 6
    got = criteria.load("fisher")(model, found, split(given, (4, 2)))
    for site in found:
        close(got[site.name], want[site.name])


@pytest.mark.parametrize("temperature", [1.0, 200.0])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "albert"])
def test_grasp_is_half_the_fall_of_the_squared_gradient_when_a_weight_shrinks(kind, temperature):
    model = classifier(kind)
    found, given, step = sites(model, "weights"), given_to(classifier(kind)), 1e-4
    before = model.config._attn_implementation
    scores = criteria.load("grasp")(model, found, split(given, (4, 2)), temperature=temperature)
    assert model.config._attn_implementation == before == "sdpa"
    model.set_attn_implementation("eager")
    weights = [s.linear.weight.requires_grad_() for s in found]

    def steepness():
        logits = model(**{k: v for k, v in given.items() if k != "labels"}).logits / temperature
        loss = nn.functional.cross_entropy(logits, given["labels"])
        return sum(g.square().sum() for g in torch.autograd.grad(loss, weights)).item()

    for site in found[1::7]:
        weight, score = site.linear.weight, scores[site.name]
        place = divmod(int(score.abs().argmax()), score.shape[1])
        keep, values = weight.data[place].clone(), []
        for scale in (1 - step, 1 + step):
            weight.data[place] = keep * scale
            values.append(steepness())
        weight.data[place] = keep
        fall = -(values[0] - values[1]) / (2 * step)
        assert 2 * score[place].item() == pytest.approx(fall, rel=1e-4)


def test_grasp_finds_the_loss_of_a_language_model_or_refuses():
    score = criteria.load("grasp")
    model = tiny("gpt2", "AutoModelForCausalLM").double()
    found, ids = sites(model, "weights")[:2], inputs(tiny("gpt2"))["input_ids"]

    def shifted(out, batch):
        return nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    own = score(model, found, Batches([{"input_ids": ids, "labels": ids}]), temperature=3.0)
    given = score(model, found, Batches([{"input_ids": ids}], loss=shifted), temperature=3.0)
    for name in own:
        close(own[name], given[name])
    scale = tiny("bert", CLASSIFIER, num_labels=1)
    given = {**given_to(scale), "labels": torch.rand(6)}
    with pytest.raises(UnsupportedError):
        score(scale, sites(scale, "weights"), Batches([given]))
    assert score(scale, sites(scale, "weights"), Batches([given]), temperature=1)
    base = tiny("bert")
    with pytest.raises(UnsupportedError):
        score(base, sites(base, "weights"), Batches([inputs(base)], loss=lambda out, _: out[0].sum()))
    with pytest.raises(InvalidValueError) as error:
        score(base, sites(base, "weights"), Batches([inputs(base)]), temperature=0)
    assert error.value.parameter == "temperature"


def test_movement_of_a_loop_that_trains():
    """S = −Σ lr·g·w with the weights of each step, and by hand with straight-through scores."""
    model, given = classifier(), given_to(classifier())
    found = sites(model, "weights")[:3]
    state = Movement(found, lr=0.1)
    want = {s.name: torch.zeros(s.shape, dtype=torch.float64) for s in found}
    optimiser = torch.optim.SGD([s.linear.weight for s in found], lr=0.5)
    for _ in range(3):
        optimiser.zero_grad()
        model(**given).loss.backward()
        for site in found:
            want[site.name] -= 0.1 * site.linear.weight.grad * site.linear.weight.detach()
        state.step()
        optimiser.step()
    for name, value in want.items():
        close(state.scores[name], value)
    for scope in ("global", "row"):
        assert remove_lowest(state.scores, 0.5, scope=scope).kept == 0.5


@pytest.mark.parametrize("name", CALIBRATED)
@pytest.mark.parametrize("kind", FAMILIES)
def test_neither_batches_nor_padding_matter_and_no_trace_is_left(kind, name):
    model = classifier(kind)
    found, given = sites(model, "weights")[:7], given_to(classifier(kind))
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    one = criteria.load(name)(model, found, split(given, (6,)))
    for data in (split(given, (1, 5)), Batches([padded(given)])):
        other = criteria.load(name)(model, found, data)
        for site in found:
            scale = one[site.name].abs().max().item()
            close(one[site.name], other[site.name], rtol=1e-5, atol=1e-6 * scale)
            assert one[site.name].std() > 0
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


@pytest.mark.parametrize("kind", sorted(architectures()))
def test_every_architecture_is_scored(kind):
    """Also embeddings, norms and the head, by whatever does not look at inputs."""

    def energy(out, _):
        tensors = [t for t in out.to_tuple() if torch.is_tensor(t) and t.is_floating_point()]
        return sum(t.square().mean() for t in tensors)

    model = tiny(kind)
    data = Batches([inputs(model)], loss=energy)
    data[0].pop("use_cache", None)
    everything = sites(model, "weights", also=("embeddings", "head", "norms"))
    for name, found in (
        ("fisher", everything),
        ("snip", everything),
        ("wanda", sites(model, "weights")),
        ("sparsegpt", sites(model, "weights")),
    ):
        scores = criteria.load(name)(model, found, data)
        for site in sites(model, "weights"):
            assert scores[site.name].dtype == torch.float32
            assert scores[site.name].max() > 0, (name, site)


def test_magnitude_of_one_and_of_many():
    model = tiny("bert")
    one, unit = sites(model, "weights")[0], sites(model, "heads")[0]
    score = criteria.load("magnitude")
    assert torch.equal(score(model, [one])[one.name], one.linear.weight.detach().abs())
    parts = [unit.weight(role).detach().double().flatten(1) for role in ("q", "k", "v", "write")]
    for order in (1, 2, 3):
        want = sum(part.abs().pow(order).sum(1) for part in parts)
        close(score(model, [unit], order=order)[unit.name], want)
    assert torch.equal(score(model, [unit])[unit.name], score(model, [unit], order=2)[unit.name])
    with pytest.raises(InvalidValueError) as error:
        score(model, [unit], order=-1)
    assert error.value.parameter == "order"
    with pytest.raises(UnknownNameError):
        criteria.criterion("weights", scope="column")


def test_fisher_of_outputs_that_the_model_writes_into():
    """Then the gradient of what was kept is no longer that of what the matrix wrote."""

    class Blot(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(4, 5).double(), nn.Linear(5, 3).double()

        def forward(self, x):
            hidden = self.second(self.first(x))
            hidden[:, 1:] = 0
            return hidden

    model, x = Blot(), torch.randn(3, 2, 4).double()
    found = [WeightSite(f"0/{n}", m) for n, m in model.named_children()]
    data = Batches([{"x": x}], loss=lambda out, _: (out - 1).square().sum() / len(out))
    got = criteria.load("fisher")(model, found, data)
    for site in found:
        want = torch.zeros(site.shape, dtype=torch.float64)
        for one in x.split(1):
            loss = (model(one) - 1).square().sum()
            want += torch.autograd.grad(loss, site.linear.weight)[0].square() / 3
        close(got[site.name], want)
