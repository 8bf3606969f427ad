"""Taylor against the change in loss that it approximates."""

import pytest
import torch

from espalier import Batches, criteria, gated, sites
from espalier.criteria.obs import unpredicted
from espalier.testing.tiny import inputs, tiny

score = criteria.load("taylor")


def classifier(kind="bert"):
    """In float64, so that a small difference of losses has digits left."""
    return tiny(kind, "AutoModelForSequenceClassification").double()


def batches(model, sizes=(6,)):
    n = sum(sizes)
    given = inputs(model, batch=n, tokens=7)
    given.pop("use_cache", None)
    given["labels"] = torch.arange(n) % 2
    cuts = torch.tensor(sizes).cumsum(0)[:-1]
    parts = {k: v.tensor_split(cuts) for k, v in given.items()}
    return Batches({k: v[i] for k, v in parts.items()} for i in range(len(sizes)))


def loss_with(model, found, data, name, unit, value):
    """The loss over all examples with one gate at `value` and all others at 1."""
    gates = {s.name: torch.ones(s.units) for s in found}
    gates[name] = gates[name].double()
    gates[name][unit] = value
    with torch.no_grad(), gated(found, gates):
        return model(**data[0]).loss.item()


@pytest.mark.parametrize("kind", ["bert", "albert", "gpt2"])
@pytest.mark.parametrize("units", ["heads", "neurons"])
def test_signed_is_the_rise_of_the_loss_when_a_gate_begins_to_close(kind, units):
    """The sign too: a unit whose removal raises the loss scores above zero."""
    model = classifier(kind)
    found, data, step = sites(model, units), batches(model), 1e-4
    got = score(model, found, data, signed=True)
    signs = set()
    for site in found:
        for unit in range(0, site.units, 1 if units == "heads" else 7):
            shut = loss_with(model, found, data, site.name, unit, 1 - step)
            wide = loss_with(model, found, data, site.name, unit, 1 + step)
            rise = (shut - wide) / (2 * step)
            assert got[site.name][unit].item() == pytest.approx(rise, rel=1e-4, abs=1e-8)
            signs.add(rise > 0)
    assert signs == {True, False}  # or the sign would not have been tested


def test_signed_predicts_what_removing_a_head_does():
    """The whole way from 1 to 0, where the first order is no longer all: the sign and the size still hold."""
    model = classifier()
    found, data = sites(model, "heads"), batches(model)
    got = score(model, found, data, signed=True)
    base = model(**data[0]).loss.item()
    for site in found:
        for unit in range(site.units):
            rise = loss_with(model, found, data, site.name, unit, 0.0) - base
            assert got[site.name][unit].item() == pytest.approx(rise, abs=7e-5)
    values = torch.cat(list(got.values()))
    assert values.min() < -5e-4
    assert values.max() > 5e-4


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("units", ["heads", "neurons"])
def test_batches_do_not_matter(units, signed):
    model = classifier()
    found = sites(model, units)
    one = score(model, found, batches(model, (6,)), signed=signed)
    for sizes in ((1,) * 6, (4, 2), (1, 5)):
        other = score(model, found, batches(model, sizes), signed=signed)
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("units", ["heads", "neurons"])
def test_of_one_example_unsigned_is_the_size_of_signed(units):
    model = classifier()
    found, alone = sites(model, units), batches(model, (1,) * 6)
    for batch in alone[2:4]:
        loud = score(model, found, Batches([batch]), signed=True)
        size = score(model, found, Batches([batch]))
        for name in loud:
            assert torch.equal(loud[name].abs(), size[name])
    loud, size = score(model, found, alone, signed=True), score(model, found, alone)
    # Over several examples good and bad cancel in the one and not in the other.
    assert all((loud[n].abs() <= size[n] + 1e-15).all() for n in loud)
    assert any((loud[n].abs() < 0.9 * size[n]).any() for n in loud)


def test_orders_differ_and_the_greedy_loop_takes_the_option():
    from espalier import prune_steps

    model = classifier()
    found, data = sites(model, "heads"), batches(model)
    (mask,) = prune_steps(model, found, score, data, [0.5], signed=True)
    got = score(model, found, data, signed=True)
    flat = sorted((v.item(), n, i) for n, s in got.items() for i, v in enumerate(s))
    assert {(n, i) for _, n, i in flat[:9]} == {
        (n, i) for n in mask for i in (~mask[n]).nonzero().flatten().tolist()
    }
    (plain,) = prune_steps(model, found, score, data, [0.5])
    assert any(not torch.equal(mask[n], plain[n]) for n in mask)


def test_kl_is_the_curvature_of_the_divergence_from_the_predictions():
    """A gate is moved by a little: the divergence is half the score times its square."""
    model = tiny("bert", "AutoModelForSequenceClassification", num_labels=3).double()
    given = {k: v for k, v in inputs(model, batch=5).items() if torch.is_tensor(v)}  # no labels
    found = sites(model, "heads", "neurons")
    scores = criteria.load("kl")(model, found, Batches([given]))
    with torch.no_grad():
        before = model(**given).logits.log_softmax(-1)
        for site, unit in ((found[0], 2), (found[3], 7), (found[4], 0)):
            values = {s.name: torch.ones(s.units) for s in found}
            values[site.name] = values[site.name].double()
            values[site.name][unit] += 1e-3
            with gated([site], values):
                after = model(**given).logits.log_softmax(-1)
            divergence = (before.exp() * (before - after)).sum(-1).mean()
            assert float(divergence) == pytest.approx(0.5e-6 * float(scores[site.name][unit]), rel=0.02)


def test_obs_takes_what_the_other_units_do_not_predict():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 6, generator=draw, dtype=torch.float64)
    x[:, 1] += x[:, 4]
    units = torch.tensor([[0, 3], [1, 4], [2, 5]])
    rest = x @ unpredicted(x.T @ x, units, 0.0)
    for own in units:
        others = [i for i in range(6) if i not in own.tolist()]
        want = x[:, own] - x[:, others] @ torch.linalg.lstsq(x[:, others], x[:, own]).solution
        torch.testing.assert_close(rest[:, own], want)


def test_a_unit_that_another_repeats_scores_nothing_with_obs():
    """Its double makes up for it, whatever its own gradient."""
    model = classifier()
    data = batches(model)
    found = sites(model, "neurons")
    with torch.no_grad():
        up = found[1].module("up")
        up.weight[7], up.bias[7] = up.weight[3], up.bias[3]
    fisher, obs = (criteria.load(n)(model, found, data)[found[1].name] for n in ("fisher", "obs"))
    alone = criteria.load("obs")(model, found, data, damping=1e-9)[found[1].name]
    assert float(alone[3]) < 1e-3 * float(fisher[3])
    assert (obs < fisher.max()).all()


@pytest.mark.parametrize("signed", [True, False])
def test_per_layer_is_the_normalisation_of_michel_et_al(signed):
    """Their code: `layerwise_importance = (importance ** 2).sum(-1) ** (1 / 2)`, then divided by it."""
    model = classifier()
    found, data = sites(model, "heads"), batches(model)
    plain = score(model, found, data, signed=signed)
    table = torch.stack(list(plain.values()))
    want = table / (table**2).sum(-1, keepdim=True) ** (1 / 2)
    got = score(model, found, data, signed=signed, per_layer=True)
    torch.testing.assert_close(torch.stack(list(got.values())), want, rtol=1e-12, atol=0)
    if not signed:
        orders = [torch.cat(list(each.values())).argsort().tolist() for each in (plain, got)]
        assert orders[0] != orders[1]  # other heads are removed first


def test_per_layer_leaves_a_layer_of_zeros():
    model = classifier()
    for p in model.bert.encoder.layer[1].attention.output.dense.parameters():
        p.data.zero_()
    got = score(model, sites(model, "heads"), batches(model), per_layer=True)
    assert got["encoder.layer.1/heads"].tolist() == [0.0] * 6
