"""The gradient diagnosis finds what is wrong, and nothing in a healthy model."""

import json
import math

import pytest
import torch

from espalier import Batches, cut, sites
from espalier.core.errors import DataError, UnsupportedError
from espalier.testing.differences import gradient_errors
from espalier.testing.gradients import _check_products, _check_ranking, diagnose
from espalier.testing.tiny import inputs, merge_examples, split_examples, tiny, uneven


def classifier(kind="bert", **config):
    return tiny(kind, "AutoModelForSequenceClassification", **config)


def batches(model):
    """Two batches of unlike lengths, padded on the right."""
    out = Batches()
    for tokens in (9, 13):
        given = inputs(model, batch=5, tokens=tokens)
        given.pop("use_cache", None)
        given["attention_mask"][:] = 1
        given["attention_mask"][1:3, -3:] = 0
        out.append({**given, "labels": torch.arange(5) % 2})
    return out


def findings(model, **options):
    found = diagnose(model, sites(model, "heads"), batches(model), **options)
    return {finding.name: finding for finding in found}


def not_ok(found):
    return {name for name, finding in found.items() if not finding.ok}


def each_norm(out):
    return out.logits.norm(dim=1).sum()


@pytest.mark.parametrize("kind", ["bert", "albert", "gpt2", "llama", "t5"])
def test_a_healthy_model_passes_and_stays_as_it_was(kind):
    model = classifier(kind)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = findings(model, few=4, sample=4)
    assert not_ok(found) == set()
    assert not any(finding.serious for finding in found.values())
    assert found["differences"].numbers["worst_error"] < 1e-6
    assert found["differences"].numbers["compared"] == 12
    assert found["batches"].numbers["example"] == pytest.approx(1)
    assert found["batches"].numbers["batch"] < 1  # the published pooling depends on them
    assert found["ties"].numbers["ties"] == 0
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_a_head_that_writes_nothing_is_found():
    model = classifier()
    site = sites(model, "heads")[1]
    with torch.no_grad():
        site.module("write").weight.index_fill_(1, site.index("write")[4], 0)
    found = findings(model, sample=18)
    assert not_ok(found) == {"gradients"}
    assert found["gradients"].numbers["zero"] == {"encoder.layer.1/heads 4": "qkv"}
    assert found["gradients"].verdict == "warning"
    assert not found["gradients"].serious  # it is ranked first, and rightly
    assert found["differences"].numbers["too_small"] == 3  # there is nothing to measure


def test_two_such_heads_are_a_tie():
    model = classifier()
    site = sites(model, "heads")[1]
    with torch.no_grad():
        for head in (2, 4):
            site.module("write").weight.index_fill_(1, site.index("write")[head], 0)
    found = findings(model, sample=1)
    assert not_ok(found) == {"gradients", "ties"}
    assert found["ties"].numbers["ties"] == 1


def test_only_the_value_may_have_a_gradient():
    """A head that attends evenly whatever it sees: its queries see no keys, so q and k get none."""
    model = classifier()
    site = sites(model, "heads")[0]
    with torch.no_grad():
        for role in "qk":
            site.module(role).weight.index_fill_(0, site.index(role)[3], 0)
            site.module(role).bias.index_fill_(0, site.index(role)[3], 0)
    found = findings(model, sample=1)
    assert found["gradients"].numbers["zero"] == {"encoder.layer.0/heads 3": "qk"}


def test_products_that_float32_loses_are_found():
    model = classifier()
    with torch.no_grad():
        model.classifier.weight.mul_(1e-14)
        model.classifier.bias.zero_()
    found = findings(model, sample=3)
    lost, rough = (found["float32 products"].numbers[k] for k in ("underflow", "subnormal"))
    assert not found["float32 products"].ok
    assert len(lost) + len(rough) == 18
    assert found["float32 products"].numbers["smallest_log10"] < -45
    assert not found["float32 ranking"].ok
    assert found["float32 ranking"].numbers["tied"] > 0
    # What espalier itself does is not touched by it.
    assert found["gradients"].ok
    assert found["ties"].ok
    assert found["differences"].ok
    assert not any(finding.serious for finding in found.values())


def test_subnormal_products_are_distinguished_from_lost_ones():
    norms = torch.tensor([[1e-13], [1e-13], [1e-13]], dtype=torch.float64)
    norms = torch.cat([norms, norms * 1e-3, norms * 1e5], 1)  # 1e-39, 1e-48, 1e-24
    found = _check_products(norms, ["a", "b", "c"])
    assert (found.numbers["subnormal"], found.numbers["underflow"]) == (["a"], ["b"])


def test_the_published_ranking_is_repeated():
    generator = torch.Generator().manual_seed(0)
    product = 1e-5 * (0.5 + torch.rand(144, generator=generator, dtype=torch.float64))
    product[29], product[39], product[85] = 3e-13, 1e-15, 2e-18
    found = _check_ranking((product ** (1 / 3)).expand(3, -1), product.log())
    assert found.numbers == {"tied": 3, "moved": 2, "first_is_the_same": False}
    same = torch.full((3, 5), 0.5, dtype=torch.float64)
    assert _check_ranking(same, same.log().sum(0)).numbers["moved"] == 5  # z is not a number


def test_gradients_that_are_not_finite_are_serious():
    model = classifier()
    with torch.no_grad():
        model.bert.encoder.layer[2].attention.self.query.weight[0, 0] = math.inf
    found = findings(model, few=2, sample=1)
    assert found["gradients"].serious
    assert found["gradients"].numbers["not_finite"]
    assert found["gradients"].verdict == "error"
    assert list(found) == ["gradients"]  # without finite scores there is no order to check


class Lie(torch.autograd.Function):
    """Nothing forward, one per cent too much backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return 1.01 * g


def test_a_wrong_gradient_is_found():
    model = classifier()
    attention = model.bert.encoder.layer[0].attention.self
    attention.register_forward_hook(lambda m, a, out: (Lie.apply(out[0]), *out[1:]))
    found = findings(model, sample=18)
    assert not_ok(found) == {"differences"}
    assert found["differences"].serious
    assert found["differences"].numbers["worst"].startswith("encoder.layer.0/heads")
    assert found["differences"].numbers["worst_error"] == pytest.approx(1 - 1 / 1.01, rel=1e-3)


def test_a_norm_that_is_not_the_gradients_is_found():
    """The short cut past weight gradients against autograd: here it does not see what autograd sees."""
    model = classifier()
    value = model.bert.encoder.layer[0].attention.self.value
    value.register_forward_hook(lambda m, a, out: Lie.apply(out))
    found = findings(model, sample=18)
    assert found["differences"].numbers["worst"].startswith("encoder.layer.0/heads")
    assert found["differences"].numbers["worst"].endswith(" v")
    assert not found["differences"].ok


def test_a_model_whose_examples_see_each_other_is_found():
    model = classifier()

    def company(module, args, out):
        return (out[0] + out[0].mean(0, keepdim=True) * (len(out[0]) > 1), *out[1:])

    model.bert.encoder.layer[1].attention.register_forward_hook(company)
    found = findings(model, sample=1)
    assert found["batches"].serious
    assert found["batches"].numbers["example"] < 0.999


def test_a_cut_model_and_one_whose_examples_share_a_weight():
    model = classifier()
    cut(model, uneven(sites(model), 0, ("heads",)), report=False)
    assert not_ok(findings(model, few=3, sample=2)) == set()
    shared = classifier("deberta-v2", share_att_key=True)
    found = findings(shared, few=3, sample=2)
    assert found["batches"].numbers["example"] is None
    assert found["batches"].serious
    assert found["gradients"].ok


def test_errors_are_of_the_norm_that_gnorm_uses():
    model = classifier()
    found, data = sites(model, "heads"), batches(model)
    errors = gradient_errors(model, found, data[0], each_norm, sample=100)
    assert len(errors) == 18 * 3
    assert max(errors.values()) < 1e-6


def test_models_without_heads_data_or_logits_are_refused():
    model = classifier()
    with pytest.raises(DataError):
        diagnose(model, sites(model, "heads"), Batches())
    with pytest.raises(UnsupportedError):
        diagnose(model, sites(model, "neurons"), batches(model))
    bare = tiny("bert")
    data = Batches([{k: v for k, v in b.items() if k != "labels"} for b in batches(bare)])
    with pytest.raises(UnsupportedError):
        diagnose(bare, sites(bare, "heads"), data)


def test_findings_are_plain_json():
    model = classifier()
    with torch.no_grad():
        model.bert.encoder.layer[0].attention.self.key.weight[0, 0] = math.nan
    found = diagnose(model, sites(model, "heads"), batches(model), few=3, sample=2)
    rows = json.loads(json.dumps([finding.to_dict() for finding in found], allow_nan=False))
    assert set(rows[0]) == {"name", "ok", "means", "advice", "serious", "numbers", "verdict"}
    assert rows[0]["verdict"] == "error"


def test_examples_are_split_and_merged():
    model = classifier()
    data = batches(model)
    singles = split_examples(data)
    assert [len(one["input_ids"]) for one in singles] == [1] * 10
    both = merge_examples(singles, padding=0)
    assert both["input_ids"].shape == (10, 13)
    assert both["attention_mask"][:5, 9:].sum() == 0
    with torch.no_grad():
        want = torch.cat([model(**batch).logits for batch in data])
        torch.testing.assert_close(model(**both).logits, want, rtol=1e-5, atol=1e-5)
    bare = split_examples([{"input_ids": torch.ones(2, 3, dtype=torch.long), "use_cache": False}])
    assert bare[0]["attention_mask"].tolist() == [[1, 1, 1]]
    assert merge_examples(bare)["use_cache"] is False
