"""Gnorm against gradients computed the slow way."""

import pytest
import torch

from espalier import Batches, criteria, cut, sites
from espalier.core.errors import DataError, InvalidValueError
from espalier.engine import gradient_norms
from espalier.testing.tiny import inputs, tiny, uneven

KINDS = [
    "bert",
    "albert",
    "roberta",
    "distilbert",
    "electra",
    "gpt2",
    "llama",
    "phi3",
    "gpt_neox",
    "bloom",
    "t5",
]


def classifier(kind):
    return tiny(kind, "AutoModelForSequenceClassification")


def batches(model, sizes=(5,)):
    n = sum(sizes)
    given = inputs(model, batch=n, tokens=7)
    given.pop("use_cache", None)
    given["labels"] = torch.arange(n) % 2
    cuts = torch.tensor(sizes).cumsum(0)[:-1]
    parts = {k: v.tensor_split(cuts) for k, v in given.items()}
    return Batches({k: v[i] for k, v in parts.items()} for i in range(len(sizes)))


def slowly(model, found, data, objective, *, order=2.0, bias=False, whole=False):
    """Weight gradients by autograd, one example (or one batch) at a time."""
    total = {(s.name, r): torch.zeros(s.units, dtype=torch.float64) for s in found for r in "qkv"}
    rows = [
        b if whole else {k: v[i : i + 1] for k, v in b.items()}
        for b in data
        for i in range(1 if whole else len(b["labels"]))
    ]
    for row in rows:
        model.zero_grad()
        out = model(**row)
        (out.loss if objective == "loss" else torch.linalg.vector_norm(out.logits)).backward()
        for site in found:
            for role in "qkv":
                g = site.grad(role).flatten(1)
                module = site.module(role)
                if bias and module.bias is not None:
                    g = torch.cat([g, module.bias.grad[site.index(role)]], 1)
                total[site.name, role] += torch.linalg.vector_norm(g.double(), order, dim=1)
    model.zero_grad()
    return {s.name: sum((total[s.name, r] / len(rows)).log() for r in "qkv") for s in found}


@pytest.mark.parametrize("objective", ["loss", "logits"])
@pytest.mark.parametrize("kind", KINDS)
def test_norms_without_gradients_are_those_of_gradients(kind, objective):
    model = classifier(kind)
    found, data = sites(model, "heads"), batches(model, (3, 2))
    found = [s for s in found if s.spec.name == "heads"]
    got = criteria.load("gnorm")(model, found, data, objective=objective)
    want = slowly(model, found, data, objective)
    for site in found:
        torch.testing.assert_close(got[site.name], want[site.name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "albert", "gpt2", "deberta-v2"])
@pytest.mark.parametrize("options", [{}, {"order": 1.0}, {"bias": True}, {"bias": True, "order": 3.0}])
def test_batch_pooling_and_options(kind, options):
    model = classifier(kind)
    found, data = sites(model, "heads"), batches(model, (3, 2))
    got = criteria.load("gnorm")(model, found, data, pooling="batch", **options)
    want = slowly(model, found, data, "logits", whole=True, **options)
    for site in found:
        torch.testing.assert_close(got[site.name], want[site.name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tokens", [5, 60])
def test_the_cheap_and_the_direct_way_agree(tokens, monkeypatch):
    model = classifier("bert")
    found = sites(model, "heads")
    data = Batches([{**inputs(model, tokens=tokens), "labels": torch.tensor([0, 1])}])
    scores = {}
    for cheap in (True, False):
        monkeypatch.setattr(gradient_norms, "_gram_is_cheaper", lambda *_, cheap=cheap: cheap)
        scores[cheap] = criteria.load("gnorm")(model, found, data, bias=True)
    for site in found:
        torch.testing.assert_close(scores[True][site.name], scores[False][site.name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("objective", ["loss", "logits"])
def test_batches_do_not_matter_unless_they_are_the_score(objective):
    model = classifier("bert")
    found = sites(model, "heads")
    score = criteria.load("gnorm")
    one = score(model, found, batches(model, (6,)), objective=objective)
    for sizes in ((1,) * 6, (4, 2)):
        other = score(model, found, batches(model, sizes), objective=objective)
        for site in found:
            torch.testing.assert_close(one[site.name], other[site.name], rtol=1e-5, atol=1e-5)
    a = score(model, found, batches(model, (6,)), objective=objective, pooling="batch")
    b = score(model, found, batches(model, (3, 3)), objective=objective, pooling="batch")
    assert any(not torch.allclose(a[n], b[n], rtol=1e-3) for n in a)


def test_padding_does_not_matter():
    model = classifier("bert")
    found, data = sites(model, "heads"), batches(model, (4,))
    wide = dict(data[0])
    for name, value in (("input_ids", 0), ("attention_mask", 0)):
        pad = torch.full((4, 6), value)
        wide[name] = torch.cat([wide[name], pad], 1)
    score = criteria.load("gnorm")
    a, b = score(model, found, data), score(model, found, Batches([wide]))
    for site in found:
        torch.testing.assert_close(a[site.name], b[site.name], rtol=1e-5, atol=1e-5)


def test_scores_under_gates_are_scores_after_the_cut():
    from espalier import masked

    model = classifier("bert")
    found, data = sites(model, "heads"), batches(model, (4,))
    mask = uneven(found, 3, ("heads",))
    with masked(model, mask):
        soft = criteria.load("gnorm")(model, found, data)
    cut(model, mask, report=False)
    hard = criteria.load("gnorm")(model, sites(model, "heads"), data)
    for name in mask:
        torch.testing.assert_close(soft[name][mask[name]], hard[name], rtol=1e-4, atol=1e-4)


def test_a_head_without_gradient_is_reported_and_ranked_lowest(caplog):
    model = classifier("bert")
    found, data = sites(model, "heads"), batches(model)
    with torch.no_grad():
        found[1].module("write").weight.index_fill_(1, found[1].index("write")[4], 0)
    scores = criteria.load("gnorm")(model, found, data)
    assert scores[found[1].name][4] == -torch.inf
    assert [record.args[:2] for record in caplog.records] == [(18, 1)]


def test_products_cannot_underflow():
    """Norms of 1e-15 each: their float32 product is zero, the sum of their logarithms is not."""
    model = classifier("bert")
    with torch.no_grad():
        model.classifier.weight.mul_(1e-15)
        model.classifier.bias.zero_()
    scores = criteria.load("gnorm")(model, sites(model, "heads"), batches(model), objective="loss")
    values = torch.cat(list(scores.values()))
    assert torch.isfinite(values).all()
    assert (values.float().exp() == 0).all()
    assert len(values.unique()) == len(values)


def test_per_layer_scores_have_length_one():
    model = classifier("bert")
    scores = criteria.load("gnorm")(model, sites(model, "heads"), batches(model), per_layer=True)
    for s in scores.values():
        torch.testing.assert_close((2 * s).exp().sum(), torch.tensor(1.0, dtype=torch.float64))


def test_gradients_that_cannot_be_separated_are_an_error():
    model = tiny("deberta-v2", "AutoModelForSequenceClassification", share_att_key=True)
    found = sites(model, "heads")
    with pytest.raises(DataError):
        criteria.load("gnorm")(model, found, batches(model, (3,)))
    alone = criteria.load("gnorm")(model, found, batches(model, (1, 1)))
    want = slowly(model, found, batches(model, (1, 1)), "logits")
    for site in found:
        torch.testing.assert_close(alone[site.name], want[site.name], rtol=1e-4, atol=1e-4)
    with pytest.raises(DataError):
        criteria.load("gnorm")(model, found)
    with pytest.raises(InvalidValueError):
        criteria.load("gnorm")(model, found, batches(model), objective="accuracy")
