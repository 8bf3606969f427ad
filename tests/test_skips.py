"""Early exits, heads and neurons skipped by example, and activations below a threshold."""

import pytest
import torch

from espalier import Batches, TokenSchedule, set_schedule, sites
from espalier.architectures.table import architectures
from espalier.core.errors import DataError, FormatError, InvalidValueError, UnsupportedError
from espalier.skips.activations import activation_sparsity, find_thresholds, keep_large, thresholded
from espalier.skips.exits import Exits, exiting_early, fit_exits
from espalier.skips.heads import fit_head_predictors, skipping_heads
from espalier.skips.neurons import fit_predictors, skipping_neurons
from espalier.testing.tiny import inputs, outputs, same, tiny
from espalier.tokens.learned import learn_retention, learn_thresholds

KINDS = ["bert", "distilbert", "vit", "modernbert"]


def classifier(kind, **more):
    images = kind == "vit"
    top = "AutoModelForImageClassification" if images else "AutoModelForSequenceClassification"
    return tiny(kind, top, num_labels=3, **more)


def batches(model, n=3, size=6, labels=True):
    draw = torch.Generator().manual_seed(4)
    out = []
    for _ in range(n):
        if model.config.model_type == "vit":
            batch = {"pixel_values": torch.randn(size, 3, 16, 16, generator=draw)}
        else:
            batch = {"input_ids": torch.randint(4, 60, (size, 9), generator=draw)}
            lengths = torch.randint(2, 10, (size, 1), generator=draw)
            batch["attention_mask"] = (torch.arange(9) < lengths).long()
        if labels:
            batch["labels"] = torch.randint(0, 3, (size,), generator=draw)
        out.append(batch)
    return Batches(out)


def singles(batch):
    """Each example alone, without its padding."""
    out = []
    for i in range(len(next(iter(batch.values())))):
        n = int(batch["attention_mask"][i].sum()) if "attention_mask" in batch else None
        out.append({k: v[i : i + 1, :n] if v.dim() == 2 else v[i : i + 1] for k, v in batch.items()})
    return out


def logits(model, batch):
    with torch.no_grad():
        return model(**{k: v for k, v in batch.items() if k != "labels"}).logits


@pytest.mark.parametrize("kind", KINDS)
def test_early_exits_alone_and_inside_a_batch(kind):
    model = classifier(kind)
    data = batches(model)
    exits = fit_exits(model, data)
    first = logits(model, data[0])
    spread = sorted(_confidences(model, exits, data[0]))
    with exiting_early(model, exits, spread[len(spread) // 2]) as left:
        together = logits(model, data[0])
        assert sum(left) == len(first)
        assert 0 < left[0] + left[1] < len(first) or left[0] > 0
        alone = torch.cat([logits(model, one) for one in singles(data[0])])
    same([together], [alone], kind)
    assert not torch.equal(together, first)
    same([logits(model, data[0])], [first], "afterwards", exact=True)


def _confidences(model, exits, batch):
    found = []
    with exiting_early(model, exits, 1.0):
        pass
    hidden = []
    block = next(m for name, m in model.named_modules() if name.endswith(("layer.0", "layers.0")))
    hook = block.register_forward_hook(
        lambda _, args, out: hidden.append(out[0] if isinstance(out, tuple) else out)
    )
    logits(model, batch)
    hook.remove()
    weight, bias = exits[0]
    found += (hidden[0][:, 0] @ weight.T + bias).softmax(-1).amax(-1).tolist()
    return found


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_all_leave_at_once_or_nobody_does(kind):
    model = classifier(kind)
    data = batches(model, 1)
    exits = Exits({0: (torch.zeros(3, 48), torch.tensor([5.0, 0, 0]))})
    dense = logits(model, data[0])
    with exiting_early(model, exits, 0.9) as left:
        assert (logits(model, data[0]).argmax(-1) == 0).all()
    assert left == [6, 0, 0]
    with exiting_early(model, exits, 1.0) as left:
        same([logits(model, data[0])], [dense], "nobody", exact=True)
    assert left == [0, 0, 6]


def test_exits_learn_and_are_saved(tmp_path):
    model = classifier("bert")
    data = batches(model, 4, 16)
    for batch in data:
        with torch.no_grad():
            batch["labels"] = logits(model, batch).argmax(-1)
    exits = fit_exits(model, data)
    assert list(exits) == [0, 1]
    exits.save(tmp_path / "exits.safetensors")
    again = Exits.load(tmp_path / "exits.safetensors")
    assert all(torch.equal(a, b) for n in exits for a, b in zip(exits[n], again[n]))
    (tmp_path / "bad").write_bytes(b"no")
    with pytest.raises(FormatError):
        Exits.load(tmp_path / "bad")
    with pytest.raises(FormatError):
        Exits.load(tmp_path / "none")


@pytest.mark.parametrize("confidence", [0.0, -1.0, 1.1, float("nan")])
def test_confidence_is_a_probability(confidence):
    model = classifier("bert")
    exits = Exits({0: (torch.zeros(3, 48), torch.zeros(3))})
    with pytest.raises(InvalidValueError), exiting_early(model, exits, confidence):
        pass


def test_what_has_no_exits():
    model = classifier("bert")
    exits = Exits({0: (torch.zeros(3, 48), torch.zeros(3))})
    with pytest.raises(UnsupportedError):
        fit_exits(tiny("bert"), batches(tiny("bert")))
    with pytest.raises(DataError):
        fit_exits(model, batches(model, labels=False))
    with pytest.raises(InvalidValueError), exiting_early(model, Exits({2: exits[0]}), 0.9):
        pass
    set_schedule(model, TokenSchedule("top", (0.5, 0.5, 0.5)))
    with pytest.raises(UnsupportedError), exiting_early(model, exits, 0.9):
        pass


@pytest.mark.parametrize("kind", ["bert", "distilbert", "vit"])
def test_skipped_neurons_alone_and_inside_a_batch_and_as_gated(kind):
    model = classifier(kind)
    data = batches(model)
    dense = logits(model, data[0])
    predictors = fit_predictors(model, data)
    with skipping_neurons(model, predictors, 0.0):
        same([logits(model, data[0])], [dense], "none skipped")
    with skipping_neurons(model, predictors, 0.5):
        together = logits(model, data[0])
        alone = torch.cat([logits(model, one) for one in singles(data[0])])
    same([together], [alone], kind)
    assert not torch.allclose(together, dense)
    same([logits(model, data[0])], [dense], "afterwards", exact=True)


def test_predictors_find_the_neurons_that_fire():
    model = classifier("bert")
    site = sites(model, "neurons")[0]
    with torch.no_grad():
        site.module("up").weight[:10] = 0
        site.module("up").bias[:10] = -20.0  # GELU of this is nothing
    data = batches(model)
    score = fit_predictors(model, data)[site.name]
    assert score[:10].abs().max() < 1e-6 < score[10:].abs().max()


@pytest.mark.parametrize("remove", [-0.1, 1.0, float("nan")])
def test_a_fraction_of_neurons(remove):
    model = classifier("bert")
    predictors = fit_predictors(model, batches(model, 1))
    with pytest.raises(InvalidValueError), skipping_neurons(model, predictors, remove):
        pass


def test_gated_networks_are_not_skipped():
    with pytest.raises(UnsupportedError):
        fit_predictors(classifier("modernbert"), batches(classifier("modernbert"), 1))


def mean_of(x, batch):
    """The mean of the tokens of each example that are not padding, one after the other."""
    mask = batch.get("attention_mask", torch.ones(x.shape[:2]))
    return torch.stack([one[kept.bool()].mean(0) for one, kept in zip(x, mask)])


def divided(model, data):
    """Predictors by which the examples of the first batch differ; fitted ones choose nearly alike."""
    draw, out = torch.Generator().manual_seed(1), fit_head_predictors(model, data)
    for site in sites(model, "heads"):
        out[site.name] = torch.randn(out[site.name].shape, generator=draw)
        out[site.name][:, -1] = 0
        out[site.name][:, -1] = -_predicted(model, site, out[site.name], data[0]).mean(0)
    return out


def gated_by_example(model, predictors, keep, batch):
    """The whole model with a gate before every writer: the heads of each example that it would choose."""
    handles, gates = [], {}
    for site in sites(model, "heads"):
        predictor = predictors[site.name]

        def choose(_, args, predictor=predictor, site=site):
            scores = mean_of(args[0], batch) @ predictor[:, :-1].T + predictor[:, -1]
            best = scores.argsort(1, descending=True)[:, :keep]
            gates[site.name] = torch.zeros_like(scores).scatter(1, best, 1.0)

        def close(_, args, site=site):
            return (args[0] * site.spread(gates[site.name])[:, None],)

        handles.append(site.module("q").register_forward_pre_hook(choose))
        handles.append(site.module("write").register_forward_pre_hook(close))
    out = logits(model, batch)
    for handle in handles:
        handle.remove()
    return out, gates


@pytest.mark.parametrize("kind", ["bert", "distilbert", "vit", "albert"])
def test_skipped_heads_alone_and_inside_a_batch_and_as_gated(kind):
    model = classifier(kind, attention="eager" if kind == "distilbert" else "sdpa")
    data = batches(model)
    dense = logits(model, data[0])
    predictors = divided(model, data)
    with skipping_heads(model, predictors, 0.0):
        same([logits(model, data[0])], [dense], "none skipped")
    with skipping_heads(model, predictors, 0.5):
        together = logits(model, data[0])
        alone = torch.cat([logits(model, one) for one in singles(data[0])])
    same([together], [alone], kind)
    site = sites(model, "heads")[0]
    gated, gates = gated_by_example(model, predictors, site.units - site.units // 2, data[0])
    same([together], [gated], "a gate closes the same heads")
    assert len({tuple(row) for row in gates[site.name].tolist()}) > 1  # examples differ in what they keep
    assert not torch.allclose(together, dense)
    same([logits(model, data[0])], [dense], "afterwards", exact=True)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
@pytest.mark.parametrize("heads_first", [True, False])
def test_skipped_heads_of_examples_that_leave_early(kind, heads_first):
    """Those that stay choose their heads without padding, though the mask is of the whole batch."""
    model = classifier(kind)
    data = batches(model, size=12)
    predictors, exits = divided(model, data), fit_exits(model, data)
    halves = sorted(_confidences(model, exits, data[0]))
    confidence = halves[len(halves) // 2]
    ways = [lambda: skipping_heads(model, predictors, 0.5), lambda: exiting_early(model, exits, confidence)]
    first, second = ways if heads_first else ways[::-1]
    with first() as one, second() as two:
        left = two if heads_first else one
        together = logits(model, data[0])
        assert 0 < left[0] + left[1] < 12
        assert left[-1]
        alone = torch.cat([logits(model, one) for one in singles(data[0])])
    same([together], [alone], kind)
    with skipping_heads(model, predictors, 0.5):  # nothing is left of the exits
        together = logits(model, data[0])
        alone = torch.cat([logits(model, one) for one in singles(data[0])])
    same([together], [alone], kind)


def test_skipped_heads_are_not_computed():
    model = classifier("bert")
    data = batches(model)
    site = sites(model, "heads")[0]
    seen = []
    with skipping_heads(model, fit_head_predictors(model, data), 0.75):
        for role in site.places:
            site.module(role).register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
        logits(model, data[0])
    size, keep = site.sizes["d"], site.units - int(0.75 * site.units)
    assert [out.shape[-1] for _, out in seen[:3]] == [keep * size] * 3
    assert seen[3][0].shape[-1] == keep * size


def test_head_predictors_find_the_heads_that_write():
    model = classifier("bert")
    site = sites(model, "heads")[0]
    with torch.no_grad():
        site.module("write").weight[:, site.index("write")[1]] = 0
    score = fit_head_predictors(model, batches(model))[site.name]
    assert score[1].abs().max() < 1e-6 < score[0].abs().max()
    # an exact fit where a head writes the same for every example: values are their bias alone
    with torch.no_grad():
        site.module("v").weight.zero_()
    score = fit_head_predictors(model, batches(model), damping=1e-9)[site.name]
    bias = site.module("v").bias.view(site.units, -1)
    want = torch.einsum("ud,udm->um", bias, site.weight("write")).norm(dim=1)
    got = _predicted(model, site, score, batches(model)[0])
    assert torch.allclose(got, want.expand_as(got), rtol=1e-3, atol=1e-5)


def _predicted(model, site, predictor, batch):
    seen = []
    hook = site.module("q").register_forward_pre_hook(lambda _, args: seen.append(mean_of(args[0], batch)))
    logits(model, batch)
    hook.remove()
    return seen[0] @ predictor[:, :-1].T + predictor[:, -1]


@pytest.mark.parametrize("remove", [-0.1, 1.0, float("nan")])
def test_a_fraction_of_heads(remove):
    model = classifier("bert")
    predictors = fit_head_predictors(model, batches(model, 1))
    with pytest.raises(InvalidValueError) as error, skipping_heads(model, predictors, remove):
        pass
    assert error.value.parameter == "remove"


def test_heads_of_another_model_and_what_has_no_heads_to_skip():
    model = classifier("bert")
    predictors = fit_head_predictors(model, batches(model, 1))
    fewer = {name: t[:-1] for name, t in predictors.items()}
    for wrong in ({}, fewer, fit_predictors(model, batches(model, 1))):
        with pytest.raises(InvalidValueError) as error, skipping_heads(model, wrong, 0.5):
            pass
        assert error.value.parameter == "predictors"
    for kind in ("modernbert", "gpt2", "llama", "t5", "opt", "mpnet", "clip_text_model", "clip"):
        other = tiny(kind)
        with pytest.raises(UnsupportedError):
            fit_head_predictors(other, batches(other, 1, labels=False))
    with pytest.raises(InvalidValueError):
        fit_head_predictors(model, batches(model, 1), damping=0.0)
    set_schedule(model, TokenSchedule("top", (0.5, 0.5, 0.5)))
    with pytest.raises(UnsupportedError), skipping_heads(model, predictors, 0.5):
        pass


def test_heads_are_skipped_only_where_tokens_read_later_ones():
    skipped = set()
    for kind in architectures():
        model = tiny(kind)
        given = inputs(model)
        if "input_ids" not in given:
            continue
        try:
            fit_head_predictors(model, Batches([given]))
        except UnsupportedError:
            continue
        skipped.add(kind)
        ids = given["input_ids"]
        other = ids.clone()
        other[:, -1] = (ids[:, -1] + 1) % 40 + 4
        with torch.no_grad():
            first, second = (model(input_ids=some).last_hidden_state[:, 0] for some in (ids, other))
        assert not torch.allclose(first, second, atol=1e-5), kind
    assert skipped >= {"bert", "distilbert", "albert", "electra"}


def test_a_tower_of_images_is_no_decoder():
    model = tiny("clip").vision_model
    data = Batches([{"pixel_values": torch.randn(2, 3, 16, 16)}])
    with skipping_heads(model, fit_head_predictors(model, data), 0.5), torch.no_grad():
        assert model(**data[0]).last_hidden_state.isfinite().all()


def test_relu_gives_half_and_gelu_no_zeros():
    for act, low, high in (("relu", 0.3, 0.7), ("gelu", 0.0, 0.0), ("silu", 0.0, 0.0)):
        model = classifier("bert", hidden_act=act)
        found = activation_sparsity(model, batches(model))
        assert len(found) == 3
        assert all(low <= share <= high for share in found.values())


def test_a_threshold_removes_what_it_should():
    model = classifier("bert")
    data = batches(model)
    thresholds = find_thresholds(model, data, 0.6)
    with thresholded(model, thresholds):
        found = activation_sparsity(model, data)
    first = next(iter(found))  # later layers read other activations than those that were measured
    assert found[first] == pytest.approx(0.6, abs=0.01)
    assert all(0.4 < share < 0.8 for share in found.values())
    dense = logits(model, data[0])
    with thresholded(model, 0.0):
        same([logits(model, data[0])], [dense], "none", exact=True)


def test_gradients_pass_where_activations_do():
    x = torch.tensor([-2.0, -0.3, 0.4, 1.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: keep_large(t, 0.5), x)
    keep_large(x, 0.5).sum().backward()
    assert x.grad.tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("wrong", [-1.0, float("inf"), float("nan"), {"nowhere/neurons": 0.1}])
def test_thresholds_out_of_range(wrong):
    model = classifier("bert")
    with pytest.raises(InvalidValueError), thresholded(model, wrong):
        pass


@pytest.mark.parametrize("learn", [learn_thresholds, learn_retention])
def test_a_stronger_penalty_keeps_fewer_tokens(learn):
    model = classifier("bert")
    before = {name: p.clone() for name, p in model.named_parameters()}
    data = batches(model, 4)
    soft = {"temperature": 0.05, "start": 0.05} if learn is learn_thresholds else {}
    weak, strong = (learn(model, data, strength=s, passes=5, **soft) for s in (0.0, 5.0))
    if learn is learn_thresholds:
        assert all(a < b for a, b in zip(weak.values, strong.values))
    else:
        assert strong.removed > weak.removed
        assert all(b <= a for a, b in zip(strong.values, strong.values[1:]))
        assert not strong.diagonal
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    set_schedule(model, strong)
    assert outputs(model, dict(data[0]))
    with pytest.raises(InvalidValueError):
        learn(model, data, strength=-1.0)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_exits_of_a_decoder_read_the_last_token(kind):
    """Every first token is the same, and reads no other: only the last one tells the classes."""
    model = classifier(kind, pad_token_id=0)
    data = batches(model, 2, 12)
    for batch in data:
        last = batch["attention_mask"].sum(1) - 1
        batch["input_ids"][:, 0] = 7
        batch["labels"] = batch["input_ids"][torch.arange(12), last] % 3
    exits = fit_exits(model, data, penalty=0.0)
    rows = [one for batch in data for one in singles(batch)]
    with exiting_early(model, exits, 1e-3) as left:  # all leave after the first layer
        together = torch.cat([logits(model, batch) for batch in data])
        alone = torch.cat([logits(model, one) for one in rows])
    assert left[0] == sum(left)
    same([together], [alone], kind)
    truth = torch.cat([batch["labels"] for batch in data])
    assert (together.argmax(-1) == truth).float().mean() > 0.9
