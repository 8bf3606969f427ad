"""Criteria of single weights against loops, differences and hand-made cases."""

import pytest
import torch
from torch import nn

from espalier import (
    Batches,
    EspalierError,
    Mask,
    compensate,
    criteria,
    lowest,
    masked,
    n_m,
    one_shot,
    per_layer,
    per_row,
    prune,
    sites,
    sparsity,
    zero,
)
from espalier.anatomy import anatomies
from espalier.compensation import repaired
from espalier.criteria.movement import Movement
from espalier.hessians import hessians
from espalier.site import WeightSite
from espalier.specimens import inputs, tiny

CLASSIFIER = "AutoModelForSequenceClassification"
WITH_GRADIENTS = ("taylor", "snip", "fisher", "obd", "movement", "grasp")
WITH_INPUTS = ("wanda", "sparsegpt")
FAMILIES = ("bert", "gpt2", "albert", "gpt_neox", "deberta-v2", "opt")


def classifier(kind="bert", **config):
    """In float64, so that a small difference of losses has digits left."""
    return tiny(kind, CLASSIFIER, **config).double()


def given_to(model, n=6, tokens=7):
    """Right-padded, every row another length: that is what padding more must not change."""
    given = {
        k: v for k, v in inputs(model, batch=n, tokens=tokens).items() if torch.is_tensor(v)
    } | {"labels": torch.arange(n) % 2}
    if "input_ids" in given:
        given["attention_mask"] = (
            torch.arange(tokens) < tokens - torch.arange(n)[:, None] % 4
        ).long()
        given["input_ids"] = given["input_ids"] * given["attention_mask"]  # 0 is the padding's
    return given


def split(given, sizes):
    cuts = torch.tensor(sizes).cumsum(0)[:-1]
    parts = {k: v.tensor_split(cuts) for k, v in given.items()}
    return Batches({k: v[i] for k, v in parts.items()} for i in range(len(sizes)))


def padded(given, more=3):
    wide = {k: nn.functional.pad(v, (0, more)) for k, v in given.items() if v.dim() == 2}
    return {**given, **wide}


def gradients(model, found, given):
    weights = [site.linear.weight for site in found]
    for weight in weights:
        weight.requires_grad_()
    grads = torch.autograd.grad(model(**given).loss, weights, allow_unused=True)
    return {s.name: torch.zeros(s.shape) if g is None else g for s, g in zip(found, grads)}


def one_by_one(given):
    return split(given, (1,) * len(given["labels"]))


def close(got, want, rtol=1e-6, atol=1e-14):
    torch.testing.assert_close(got.double(), want.double(), rtol=rtol, atol=atol)


# ------------------------------------------------------------------------------------------ gradients


@pytest.mark.parametrize("kind", FAMILIES)
def test_taylor_and_snip_and_movement_are_the_products_of_gradient_and_weight(kind):
    model = classifier(kind)
    found, given = sites(model, "weights"), given_to(classifier(kind))
    data = split(given, (4, 2))
    want = {n: -g for n, g in gradients(model, found, given).items()}
    want = {s.name: want[s.name] * s.linear.weight.detach() for s in found}
    whole = sum(w.abs().sum() for w in want.values())
    signed = criteria.load("taylor")(model, found, data, signed=True)
    plain = criteria.load("taylor")(model, found, data)
    share = criteria.load("snip")(model, found, data)
    moved = criteria.load("movement")(model, found, data, lr=0.5)
    for name, change in want.items():
        close(signed[name], change)
        close(plain[name], change.abs())
        close(share[name], change.abs() / whole)
        close(
            moved[name], 3 * change, atol=1e-6 * change.abs().max().item()
        )  # steps of 0.5, six of them
    assert sum(s.sum() for s in share.values()).item() == pytest.approx(1)


def test_signed_taylor_is_the_rise_of_the_loss_when_a_weight_begins_to_shrink():
    model = classifier("gpt2")
    site, given, step = sites(model, "weights")[0], given_to(classifier("gpt2")), 1e-4
    got = criteria.load("taylor")(model, [site], Batches([given]), signed=True)[site.name]
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
    found = sites(model, "weights", embeddings=True, head=True, norms=True)
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
    from espalier import gated

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


def test_grasp_finds_the_loss_of_a_language_model_and_says_when_it_cannot():
    score = criteria.load("grasp")
    model = tiny("gpt2", "AutoModelForCausalLM").double()
    found, ids = sites(model, "weights")[:2], inputs(tiny("gpt2"))["input_ids"]

    def shifted(out, batch):
        return nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    own = score(model, found, Batches([{"input_ids": ids, "labels": ids}]), temperature=3.0)
    said = score(model, found, Batches([{"input_ids": ids}], loss=shifted), temperature=3.0)
    for name in own:
        close(own[name], said[name])
    scale = tiny("bert", CLASSIFIER, num_labels=1)
    given = {**given_to(scale), "labels": torch.rand(6)}
    with pytest.raises(EspalierError, match=r"no cross-entropy of its.*temperature=1"):
        score(scale, sites(scale, "weights"), Batches([given]))
    assert score(scale, sites(scale, "weights"), Batches([given]), temperature=1)
    base = tiny("bert")
    with pytest.raises(EspalierError, match="this model returns none"):
        score(
            base, sites(base, "weights"), Batches([inputs(base)], loss=lambda out, _: out[0].sum())
        )
    with pytest.raises(EspalierError, match="above zero"):
        score(base, sites(base, "weights"), Batches([inputs(base)]), temperature=0)


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
    assert lowest(state.scores, 0.5).kept == 0.5
    assert per_row(state.scores, 0.5).kept == 0.5


# ------------------------------------------------------------------------------------------ inputs


class Toy(nn.Module):
    """One matrix that reads what it is given; that is all these criteria know of a model."""

    def __init__(self, weight):
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.linear.weight.data = weight.clone()
        self.config = None

    @property
    def base_model(self):
        return self

    def forward(self, x):
        return self.linear(x)


def toy(rows=24, width=40, tokens=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=generator).double()
    x = torch.randn(1, tokens, width, generator=generator).double() @ (mix / width**0.5)
    model = Toy(torch.randn(rows, width, generator=generator).double())
    return model, WeightSite("toy/linear", model.linear, "o m"), Batches([{"x": x}])


@pytest.mark.parametrize("kind", ["bert", "gpt2", "albert"])
def test_wanda_is_magnitude_times_the_norm_of_real_inputs(kind):
    model = classifier(kind)
    found, given = sites(model, "weights"), given_to(classifier(kind))
    seen = {s.name: [] for s in found}
    handles = [
        s.linear.register_forward_pre_hook(lambda _, a, name=s.name: seen[name].append(a[0]))
        for s in found
    ]
    for alone in one_by_one(given):  # without its padding a row is alone with its tokens
        real = int(alone["attention_mask"].sum())
        short = {k: v[:, :real] for k, v in alone.items() if k != "labels"}
        with torch.no_grad():
            model(**short)
    for handle in handles:
        handle.remove()
    got = criteria.load("wanda")(model, found, split(given, (4, 2)))
    for site in found:
        x = torch.cat([part.flatten(0, 1) for part in seen[site.name]]).norm(dim=0)
        want = site.linear.weight.detach().abs() * (x[:, None] if kind == "gpt2" else x)
        close(got[site.name], want, rtol=1e-5)


def test_wanda_of_even_inputs_is_magnitude_row_by_row():
    model, site, _ = toy()
    even = Batches([{"x": 3 * torch.eye(40, dtype=torch.float64)[None]}])
    scores = criteria.load("wanda")(model, [site], even)
    close(scores[site.name], 3 * model.linear.weight.detach().abs())
    size = criteria.load("magnitude")(model, [site])
    assert torch.equal(per_row(scores, 0.4)[site.name], per_row(size, 0.4)[site.name])


def test_wanda_does_not_mind_a_scale_moved_from_weights_to_inputs():
    model, site, data = toy()
    scale = torch.linspace(0.1, 9, 40).double()
    before = criteria.load("wanda")(model, [site], data)[site.name]
    model.linear.weight.data /= scale
    after = criteria.load("wanda")(model, [site], Batches([{"x": data[0]["x"] * scale}]))[site.name]
    close(before, after)


def test_wanda_compares_within_rows_by_itself():
    model = classifier("gpt2")
    found, data = sites(model, "weights"), Batches([given_to(classifier("gpt2"))])
    (mask,) = prune(model, found, criteria.load("wanda"), data, one_shot(0.5))
    scores = criteria.load("wanda")(model, found, data)
    assert all(torch.equal(m, per_row(scores, 0.5)[n]) for n, m in mask.items())
    assert all(
        (m.sum(0) == m.shape[0] // 2).all() for m in mask.values()
    )  # inputs lie along axis 0
    (flat,) = prune(model, found, criteria.load("magnitude"), None, one_shot(0.5))
    size = criteria.load("magnitude")(model, found)
    assert all(torch.equal(m, lowest(size, 0.5)[n]) for n, m in flat.items())


def test_cross_attention_reads_the_tokens_of_the_encoder():
    model = tiny("bart").double()
    given = {k: v for k, v in inputs(model, tokens=7).items() if torch.is_tensor(v)}
    given["decoder_attention_mask"] = torch.ones_like(given["decoder_input_ids"])
    given["decoder_attention_mask"][1, 5:] = 0
    found = [s for s in sites(model, "weights") if s.name.startswith("decoder.layers.1/")]
    tokens = {}
    measured = hessians(model, found, Batches([given]), "test")
    for site in found:
        rows = []
        handle = site.linear.register_forward_pre_hook(lambda _, a, rows=rows: rows.append(a[0]))
        with torch.no_grad():
            model(**given)
        handle.remove()
        crossing = "encoder_attn.k" in site.name or "encoder_attn.v" in site.name
        mask = given["attention_mask" if crossing else "decoder_attention_mask"].bool()
        x = rows[0][mask]
        tokens[site.name] = len(x)
        close(measured[site.name], 2 * x.T @ x / len(x))
    assert set(tokens.values()) == {14 - 3, 14 - 2}
    assert {s.reads for s in found} == {"hidden", "encoder"}


def test_what_reads_nothing_is_refused():
    model = tiny("bert", CLASSIFIER)
    data = Batches([given_to(model)])
    for options, message in (
        ({"embeddings": True}, "is an embedding, which multiplies no input"),
        ({"norms": True}, "is the scale of a norm"),
    ):
        found = sites(model, "weights", **options)
        for name in WITH_INPUTS:
            with pytest.raises(EspalierError, match=message):
                criteria.load(name)(model, found, data)
        with pytest.raises(EspalierError, match=message):
            compensate(model, found, data)
    for name in WITH_INPUTS + WITH_GRADIENTS:
        with pytest.raises(EspalierError, match=f"{name} needs calibration data"):
            criteria.load(name)(model, sites(model, "weights"))


# ------------------------------------------------------------------------------------------ all of them


@pytest.mark.parametrize("name", WITH_GRADIENTS + WITH_INPUTS)
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


@pytest.mark.parametrize("kind", sorted(anatomies()))
def test_every_architecture_is_scored(kind):
    """Also embeddings, norms and the head, by whatever does not look at inputs."""

    def energy(out, _):
        tensors = [t for t in out.to_tuple() if torch.is_tensor(t) and t.is_floating_point()]
        return sum(t.square().mean() for t in tensors)

    model = tiny(kind)
    data = Batches([inputs(model)], loss=energy)
    data[0].pop("use_cache", None)
    everything = sites(model, "weights", embeddings=True, head=True, norms=True)
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


# ------------------------------------------------------------------------------------------ SparseGPT


def test_repair_leaves_less_error_than_magnitude_at_the_same_budget():
    model, site, data = toy()
    weight, x = model.linear.weight.detach().clone(), data[0]["x"][0]
    hessian = hessians(model, [site], data, "test")[site.name]
    close(hessian, 2 * x.T @ x / len(x))

    def error(other):
        return (x @ (weight - other).T).square().sum().item()

    size = criteria.load("magnitude")(model, [site])
    for keep in (0.3, 0.5, 0.8):
        mended, kept = repaired(weight, hessian, keep, block=16)
        assert int(kept.sum()) == round(keep * weight.numel())
        assert torch.equal(mended != 0, kept)
        by_size = error(weight * lowest(size, keep)[site.name])
        assert error(mended) < 0.8 * by_size
        assert error(mended) < error(weight * kept)  # the same mask without repair
    for n, m in ((2, 4), (1, 4), (4, 8), (2, 3)):
        mended, kept = repaired(weight, hessian, 0.5, groups=(n, m), block=16)
        count = kept[:, : 40 // m * m].unflatten(1, (-1, m)).sum(-1)
        assert (count == n).all()
        assert error(mended) < error(weight * n_m(size, n, m)[site.name])
    assert (repaired(weight, hessian, 0.5, groups=(2, 3))[1][:, 39:].sum(1) == 1).all()


def test_repair_of_one_weight_is_the_best_there_is():
    """With one weight gone from the first column, least squares over the others gives the same row."""
    model, site, data = toy(rows=1, width=6)
    weight = model.linear.weight.detach().clone()
    weight[0, 0] = 1e-3  # the one to go
    hessian = hessians(model, [site], data, "test")[site.name]
    mended, kept = repaired(weight, hessian, 5 / 6, damping=0)
    assert kept.tolist() == [[False, True, True, True, True, True]]
    x = data[0]["x"][0]
    best = torch.linalg.lstsq(x[:, 1:], (x @ weight.T)).solution.T
    close(mended[:, 1:], best, rtol=1e-8)


def test_without_correlation_nothing_is_mended_and_the_score_is_wandas_square():
    model, site, _ = toy()
    scale = torch.linspace(1, 5, 40).double()
    data = Batches([{"x": torch.diag(scale)[None]}])
    weight = model.linear.weight.detach().clone()
    kept = compensate(model, [site], data, keep=0.5, damping=0)[site.name]
    close(model.linear.weight.detach(), weight * kept, rtol=1e-12)
    model.linear.weight.data = weight
    score = criteria.load("sparsegpt")(model, [site], data, damping=0)[site.name]
    wanda = criteria.load("wanda")(model, [site], data)[site.name]
    close(score, 2 / 40 * wanda.square())
    assert torch.equal(
        per_layer(criteria.load("sparsegpt")(model, [site], data, damping=0), 0.5)[site.name], kept
    )


def test_an_input_that_is_always_zero_goes_first():
    model, site, data = toy()
    data[0]["x"][..., [3, 17]] = 0
    model.linear.weight.data[:, 3] = 50.0
    assert (criteria.load("sparsegpt")(model, [site], data)[site.name][:, [3, 17]] == 0).all()
    kept = compensate(model, [site], data, keep=0.9)[site.name]
    assert not kept[:, [3, 17]].any()
    assert torch.isfinite(model.linear.weight).all()
    assert int(kept.sum()) == round(0.9 * kept.numel())


@pytest.mark.parametrize("kind", ["bert", "gpt2", "albert", "phi3"])
def test_compensation_goes_layer_by_layer_with_the_inputs_of_the_pruned_model(kind):
    model = classifier(kind)
    data = split(given_to(model), (4, 2))
    before = [w.linear.weight.detach().clone() for w in sites(model, "weights")]
    found = sites(model, "weights")
    mask = compensate(model, found, data, keep=0.6, block=16)
    assert all(p.requires_grad for p in model.parameters())
    # By hand: the last block again, on a model whose earlier blocks are as they are now.
    last = [
        (s, w)
        for s, w in zip(found, before)
        if s.name.split("/")[0] == found[-1].name.split("/")[0]
    ]
    now = {s.name: s.linear.weight.detach().clone() for s, _ in last}
    for site, weight in last:
        site.linear.weight.data.copy_(weight)
    measured = hessians(model.eval(), [s for s, _ in last], data, "test")
    for site, weight in last:
        turned = (lambda w: w.T) if site.input_axis == 0 else (lambda w: w)
        want, kept = repaired(turned(weight), measured[site.name], 0.6, block=16)
        close(now[site.name], turned(want), rtol=1e-9)
        assert torch.equal(mask[site.name], turned(kept))
        assert torch.equal(now[site.name] != 0, mask[site.name])
    for m in mask.values():
        assert int(m.sum()) == round(0.6 * m.numel())


def test_compensation_to_n_of_m_and_its_mistakes():
    model = tiny("gpt2", CLASSIFIER)
    found, data = sites(model, "weights"), Batches([given_to(model)])
    mask = compensate(model, found, data, n=2, m=4)
    for site in found:
        assert (mask[site.name].T.unflatten(-1, (-1, 4)).sum(-1) == 2).all()
        assert torch.equal(site.linear.weight != 0, mask[site.name])
    for options, message in (
        ({"n": 2}, "n=2, m=None"),
        ({"n": 5, "m": 4}, "n=5, m=4"),
        ({"keep": 2}, "fraction from 0 to 1"),
    ):
        with pytest.raises(EspalierError, match=message):
            compensate(model, found, data, **options)
    with pytest.raises(EspalierError, match="prunes single weights"):
        compensate(model, sites(model, "heads"), data)


# ------------------------------------------------------------------------------------------ which matrices


def test_embeddings_head_and_norms_only_when_asked_for():
    model = tiny("bert", CLASSIFIER)
    plain = [s.name for s in sites(model, "weights")]
    more = sites(model, "weights", embeddings=True, head=True, norms=True)
    new = {s.name: s for s in more if s.name not in plain}
    assert [s.name for s in more if s.name in plain] == plain
    assert {n for n, s in new.items() if s.reads == "ids"} == {
        f"embeddings/{kind}_embeddings" for kind in ("word", "position", "token_type")
    }
    assert {n for n, s in new.items() if s.reads == "hidden"} == {"pooler/dense", "classifier"}
    assert len([n for n, s in new.items() if s.reads == "channels"]) == 1 + 2 * 3
    matrices = sum(s.units for s in more)
    biases = sum(p.numel() for n, p in model.named_parameters() if n.endswith("bias"))
    assert matrices + biases == sum(p.numel() for p in model.parameters())
    with pytest.raises(EspalierError, match="weight by weight"):
        sites(model, "heads", embeddings=True)


def test_a_tied_matrix_comes_once():
    model = tiny("gpt2", "AutoModelForCausalLM")
    assert model.lm_head.weight is model.transformer.wte.weight
    assert not [s for s in sites(model, "weights", head=True) if "lm_head" in s.name]
    found = sites(model, "weights", embeddings=True, head=True, norms=True)
    weights = [id(s.linear.weight) for s in found]
    assert len(weights) == len(set(weights))
    # Both of its uses are in its gradient.
    ids = inputs(model)["input_ids"]
    data = Batches([{"input_ids": ids, "labels": ids}])
    got = criteria.load("taylor")(model, found, data)["wte"]
    model(input_ids=ids, labels=ids).loss.backward()
    weight = model.lm_head.weight
    close(got, (weight.grad * weight).detach().abs(), rtol=1e-4, atol=1e-9)


def test_masked_is_zero_in_embeddings_head_and_norms():
    model = tiny("bert", CLASSIFIER)
    found = sites(model, "weights", embeddings=True, head=True, norms=True)
    mask = lowest(criteria.load("random")(model, found), 0.7)
    given = given_to(model)
    whole = model(**given).logits
    with masked(model, mask):
        want = model(**given).logits
    assert torch.equal(model(**given).logits, whole)
    assert not torch.allclose(want, whole, atol=1e-3)
    zero(model, mask)
    assert torch.equal(model(**given).logits, want)
    assert sum(int((s.linear.weight == 0).sum()) for s in found) == sum(
        int((~m).sum()) for m in mask.values()
    )
    norm = model.bert.embeddings.LayerNorm
    with masked(model, Mask({"embeddings/LayerNorm": torch.zeros(48)})):  # a mask of norms alone
        assert (norm.weight == 0).all()
    assert (norm.weight != 0).any()


# ------------------------------------------------------------------------------------------ how sparse


def test_compression_told_three_ways():
    model = tiny("bert", CLASSIFIER)
    found = sites(model, "weights")
    assert sparsity(model).compression == {"matrices": 1.0, "model": 1.0, "file": 1.0}
    zero(model, lowest(criteria.load("magnitude")(model, found), 0.2))
    got = sparsity(model)
    weights, every = sum(s.units for s in found), sum(p.numel() for p in model.parameters())
    gone = weights - round(0.2 * weights)
    assert (got.zeros, got.weights, got.all_zeros, got.parameters) == (gone, weights, gone, every)
    assert got.of_matrices == gone / weights
    assert got.of_model == gone / every
    assert got.compression["matrices"] == pytest.approx(5, rel=1e-4)
    assert got.compression["model"] == every / (every - gone)
    # Each matrix pays a bit a weight, or stays dense if that is less.
    bits = sum(
        min(32 * p.numel(), 32 * int((p != 0).sum()) + p.numel()) for p in model.parameters()
    )
    assert got.compression["file"] == pytest.approx(32 * every / bits)
    assert "80.0%" in str(got)
    assert sparsity(model, sites(model, "weights", head=True)).weights > weights


def test_the_whole_of_distilbert_is_not_five_times_smaller():
    """At 80 % of its 36 matrices: twice, and a little less in a file."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    with torch.device("meta"):
        model = DistilBertForSequenceClassification(DistilBertConfig())
    weights = sum(s.units for s in sites(model, "weights"))
    every = sum(p.numel() for p in model.parameters())
    assert (weights, every) == (42_467_328, 66_955_010)
    from espalier.measure import Sparsity

    gone = round(0.8 * weights)
    told = Sparsity(gone, weights, gone, every, 32 * every, 32 * (every - gone) + weights)
    assert {k: round(v, 2) for k, v in told.compression.items()} == {
        "matrices": 5.0,
        "model": 2.03,
        "file": 1.95,
    }
