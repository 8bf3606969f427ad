import math

import pytest
import torch

from espalier import Batches, EspalierError, criteria, cut, prune_heads, sites
from espalier.architectures.table import architectures
from espalier.core.errors import DataError, UnknownNameError
from espalier.engine.gates import watching_attention
from espalier.testing.tiny import inputs, outputs, tiny, uneven

score = criteria.load("entropy")


def data(model, batch=4, tokens=9):
    given = inputs(model, batch=batch, tokens=tokens)
    given.pop("use_cache", None)
    return given


@pytest.mark.parametrize("kind", sorted(architectures()))
def test_maps_of_every_architecture(kind):
    """Rows sum to one, a map per kept head and use, and the model is as before."""
    model = tiny(kind)
    cut(model, uneven(sites(model), 1), report=False)
    before, want = model.config._attn_implementation, outputs(model, data(model, 2, 17))
    seen = {}
    found = sites(model, "heads")
    with (
        torch.no_grad(),
        watching_attention(model, found, lambda s, m: seen.setdefault(s.name, []).append(m)),
    ):
        model(**data(model, 2, 17))
    for site in found:
        maps = seen.get(site.name, [])
        assert len(maps) == (site.uses if site.units else 0), site
        for m in maps:
            assert m.shape[:2] == (2, site.units * site.group)
            torch.testing.assert_close(m.sum(-1), torch.ones(m.shape[:3]))
    assert model.config._attn_implementation == before
    assert torch.equal(outputs(model, data(model, 2, 17))[0], want[0])
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_by_hand():
    model = tiny("bert", attention="eager")
    found, given = sites(model, "heads"), data(model)
    with torch.no_grad():
        maps = model(**given, output_attentions=True).attentions
    for site, layer in zip(found, maps):
        want = torch.zeros(6, dtype=torch.float64)
        for i, real in enumerate(given["attention_mask"].bool()):
            a = layer[i][:, real][:, :, real].double()
            want += -(a * a.log()).sum(-1).mean(-1) / 4
        for form in ("exact", "B"):
            got = score(model, found, Batches([given]), form=form)[site.name]
            torch.testing.assert_close(got, -want, rtol=1e-4, atol=1e-4)


def test_uniform_attention_has_the_entropy_of_its_length():
    model = tiny("bert")
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.zero_()
            layer.attention.self.query.bias.zero_()
    given = data(model)
    given["attention_mask"][:] = 1
    for s in score(model, sites(model, "heads"), Batches([given])).values():
        torch.testing.assert_close(s, torch.full((6,), -math.log(9), dtype=torch.float64))


@pytest.mark.parametrize("kind", ["bert", "llama", "albert", "gpt2"])
def test_batches_and_padding_do_not_matter(kind):
    model = tiny(kind)
    found, given = sites(model, "heads"), data(model)
    given["attention_mask"][:] = 1
    given["attention_mask"][1, 6:] = 0  # right padding only: a causal row must have a token to attend to
    whole = score(model, found, Batches([given]))
    rows = Batches({k: v[i : i + 1] for k, v in given.items()} for i in range(4))
    cut_row = {k: v[1:2, :6] for k, v in given.items()}
    rows[1] = cut_row
    for name, value in score(model, found, rows).items():
        torch.testing.assert_close(value, whole[name], rtol=1e-5, atol=1e-5)


def test_special_tokens_in_or_out():
    model = tiny("bert")
    found, given = sites(model, "heads"), data(model)
    with pytest.raises(DataError):
        score(model, found, Batches([given]), special=False)
    marked = torch.zeros_like(given["input_ids"])
    marked[:, 0] = marked[:, -1] = 1
    both = Batches([{**given, "special_tokens_mask": marked}])
    inside, outside = score(model, found, both), score(model, found, both, special=False)
    assert not torch.allclose(inside[found[0].name], outside[found[0].name])


def test_published_forms():
    """Form A is not a number where attention is zero, form C has a floor, the exact one has neither."""
    model = tiny("bert")
    with torch.no_grad():  # attention so sharp that its tail is exactly zero
        model.encoder.layer[0].attention.self.query.weight.mul_(1e4)
        model.encoder.layer[0].attention.self.key.weight.mul_(1e4)
    found, given = sites(model, "heads"), data(model)
    with pytest.raises(EspalierError):
        score(model, found, Batches([given]), form="A")
    exact = score(model, found, Batches([given]))
    floor = score(model, found, Batches([given]), form="C")
    assert torch.isfinite(exact[found[0].name]).all()
    assert (floor[found[0].name] < exact[found[0].name] - 1e-7).all()
    with pytest.raises(UnknownNameError):
        score(model, found, Batches([given]), form="D")
    with pytest.raises(DataError):
        score(model, found)


def test_a_cut_model_has_scores_for_what_is_left():
    model = tiny("bert")
    prune_heads(model, {0: range(6), 1: [0]})
    scores = score(model, sites(model, "heads"), Batches([data(model)]))
    assert [len(s) for s in scores.values()] == [0, 5, 6]
