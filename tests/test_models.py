"""All-attention and Transformer-XL: exact sizes, the written formula, memory, and cuts."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from espalier import Mask, cost, criteria, cut, gated, load, masked, plan_of, save, sites
from espalier.core.errors import InvalidValueError, UnsupportedError
from espalier.models.attention import shift
from espalier.testing.tiny import tiny, uneven

TYPES = ("all_attention", "transformer_xl")
CAUSAL = "AutoModelForCausalLM"
HEADS, LAYERS, WIDTH = 8, 16, 512


def on_meta(model_type, **config):
    """A model of the published size, without its weights."""
    with torch.device("meta"):
        made = AutoConfig.for_model(model_type, vocab_size=64, cutoffs=[], **config)
        return AutoModelForCausalLM.from_config(made)


def in_layers(model):
    return sum(p.numel() for p in model.model.layers.parameters())


def random_ids(model, batch=2, tokens=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, model.config.vocab_size, (batch, tokens), generator=generator)


def test_published_sizes():
    """One gate per head is counted in the published number; here gates are no part of the model."""
    model = on_meta("all_attention", num_slots=2048)
    assert in_layers(model) + LAYERS * HEADS == 54_567_040
    found = sites(model, "heads")
    assert {site.parameters_per_unit() for site in found} == {426_112}
    xl = on_meta("transformer_xl")
    assert {site.parameters_per_unit() for site in sites(xl, "heads")} == {163_840 + 2 * 64}


def test_published_size_of_a_pruned_model():
    """N = 2000, 73 of 128 heads kept: the 30.7 M of the published table."""
    model = on_meta("all_attention", num_slots=2000)
    kept = [5] * 9 + [4] * 7
    mask = Mask({s.name: torch.arange(HEADS) < k for s, k in zip(sites(model, "heads"), kept)})
    cut(model, mask, report=False)
    assert sum(s.units for s in sites(model, "heads")) == 73
    assert in_layers(model) == 73 * 419_968 + LAYERS * 3 * WIDTH == 30_682_240


def reference(layer, hidden, memory, by_distance, mem_length):
    """The formula, one query, head and key at a time, from the weights alone."""
    a = layer.attention
    heads, d = a.q_proj.weight.shape[0] // a.head_dim, a.head_dim
    context = layer.norm(torch.cat([memory, hidden], 1))
    q, k, v = a.q_proj(layer.norm(hidden)), a.k_proj(context), a.v_proj(context)
    r = by_distance @ a.r_proj.weight.T
    u, w = a.k_proj.bias, a.r_proj.bias
    out, (batch, tokens, _), before = torch.zeros_like(q), hidden.shape, memory.shape[1]
    for b, i, h in torch.cartesian_prod(*map(torch.arange, (batch, tokens, heads))).tolist():
        of = slice(h * d, (h + 1) * d)
        keys = range(max(0, i + before - mem_length), i + before + 1)
        scores = [
            (q[b, i, of] + u[of]) @ k[b, j, of] + (q[b, i, of] + w[of]) @ r[i + before - j, of] for j in keys
        ]
        values = [v[b, j, of] for j in keys]
        if a.slot_keys is not None:
            slots = a.slot_keys.weight.shape[1]
            scores += [math.sqrt(d) * (q[b, i, of] @ a.slot_keys.weight[of, n]) for n in range(slots)]
            values += [math.sqrt(slots) * a.slot_values.weight[of, n] for n in range(slots)]
        out[b, i, of] = torch.stack(values, 1) @ torch.softmax(torch.stack(scores) / math.sqrt(d), 0)
    return hidden + a.o_proj(out)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", TYPES)
def test_a_layer_computes_the_formula(model_type, attention):
    model = tiny(model_type, attention=attention, num_hidden_layers=1, mem_length=5).double()
    generator = torch.Generator().manual_seed(1)
    hidden, memory = (torch.randn(2, n, 48, generator=generator, dtype=torch.float64) for n in (6, 5))
    layer = model.layers[0]
    layer.feed_forward = None
    with torch.no_grad():
        mask, positions = model._context(hidden, 5, None)
        got = layer(hidden, memory, [], attention_mask=mask, positions=positions, past_key_values=None)
        want = reference(layer, hidden, memory, model.positions.weight, 5)
    assert mask.sum(-1).flatten().tolist() == [6] * 6  # every query sees itself and the five before it
    torch.testing.assert_close(got, want, atol=1e-10, rtol=0)


@pytest.mark.parametrize("model_type", TYPES)
def test_fast_attention_is_the_plain_one(model_type):
    fast, plain = (tiny(model_type, CAUSAL, attention=name) for name in ("sdpa", "eager"))
    ids = random_ids(fast)
    with torch.no_grad():
        first = [model(ids, mems=()) for model in (fast, plain)]
        again = [model(ids, mems=out.mems) for model, out in zip((fast, plain), first)]
    for a, b in (first, again):
        torch.testing.assert_close(a.logits, b.logits, atol=1e-5, rtol=0)


def test_shift_puts_every_distance_in_its_place():
    for tokens, keys in ((1, 1), (1, 7), (4, 4), (3, 8), (6, 7)):
        by_distance = torch.arange(keys - 1, -1, -1.0).expand(2, tokens, keys)
        moved = shift(by_distance)
        for i in range(tokens):
            for j in range(i + keys - tokens + 1):
                assert moved[1, i, j] == i + keys - tokens - j


@pytest.mark.parametrize("model_type", TYPES)
def test_causal(model_type):
    model = tiny(model_type, CAUSAL)
    ids = random_ids(model)
    other = ids.clone()
    other[:, 7:] = (other[:, 7:] + 5) % 60
    with torch.no_grad():
        change = (model(ids).logits - model(other).logits).abs().amax((0, 2))
    assert (change[:7] == 0).all()
    assert (change[7:] > 0).all()


@pytest.mark.parametrize("same_length", [True, False])
@pytest.mark.parametrize("model_type", TYPES)
def test_segments_with_memory_are_one_text(model_type, same_length):
    """With memory, segments give what the whole text gives as far back as the memory reaches."""
    mem_length = 4 if same_length else 100
    model = tiny(model_type, CAUSAL, mem_length=mem_length, same_length=same_length)
    ids = random_ids(model, tokens=15)
    with torch.no_grad():
        want, mems, got = model(ids).logits, (), []
        for segment in ids.split(5, 1):
            out = model(segment, mems=mems)
            mems = out.mems
            got.append(out.logits)
    torch.testing.assert_close(torch.cat(got, 1), want, atol=1e-5, rtol=0)
    assert {m.shape[1] for m in mems} == {min(15, mem_length)}
    assert not any(m.requires_grad for m in mems)


def test_memory_extends_the_context():
    """A word of the segment before changes the predictions if and only if the memory holds it."""
    model = tiny("all_attention", CAUSAL, num_hidden_layers=1, mem_length=6)
    ids = random_ids(model, tokens=10)
    other = ids.clone()
    other[:, 4] = (ids[:, 4] + 7) % 60  # six words before the first of the next segment

    def next_segment(first, mems):
        return model(random_ids(model, seed=9), mems=model(first, mems=()).mems if mems else ()).logits

    with torch.no_grad():
        change = (next_segment(ids, True) - next_segment(other, True)).abs().amax((0, 2))
        assert torch.equal(next_segment(ids, False), next_segment(other, False))
    assert change[0] > 0
    assert (change[1:] == 0).all()  # one further away than the memory reaches


def test_weights_learn_from_memory():
    model = tiny("all_attention", CAUSAL, num_hidden_layers=2)
    first = model(random_ids(model), mems=())
    ids = random_ids(model, seed=3)

    def gradient(mems):
        model.zero_grad()
        model(ids, mems=mems, labels=ids).loss.backward()
        return model.model.layers[0].attention.k_proj.weight.grad.clone()

    assert not torch.allclose(gradient(first.mems), gradient(()))


@pytest.mark.parametrize("cutoffs", [[], [20, 40]])
def test_adaptive_softmax(cutoffs):
    model = tiny("all_attention", CAUSAL, cutoffs=cutoffs)
    ids = random_ids(model)
    with torch.no_grad():
        out = model(ids, labels=ids)
        chances = out.logits.softmax(-1)
        if cutoffs:
            torch.testing.assert_close(out.logits.exp(), chances)
        want = -chances[:, :-1].gather(2, ids[:, 1:, None]).log().mean()
        torch.testing.assert_close(out.loss, want)
        kept = model(ids, logits_to_keep=1).logits
        torch.testing.assert_close(kept, out.logits[:, -1:])
    hidden = ids.clone()
    hidden[:, 5:] = -100
    assert model(ids, labels=hidden).loss != out.loss
    loss = model.train()(ids, labels=ids)
    loss.loss.backward()
    assert (loss.logits is None) == bool(cutoffs)
    assert all(p.grad is not None for p in model.parameters())


def test_macs_with_memory_are_the_published_formula():
    """Counted by torch, one head less costs the same everywhere, and a layer costs H times that."""
    d, t, m, n = 48, 6, 4, 20
    s, size = t + m, 48 // 6

    def count(heads):
        model = tiny("all_attention", num_hidden_layers=1, attention="eager", cutoffs=[], mem_length=m)
        if heads < 6:
            cut(model, Mask({"layers.0/heads": torch.arange(6) < heads}), report=False)
        mems = [torch.zeros(1, m, d)]
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(random_ids(model, 1, t), mems=mems)
        return counter.get_total_flops() // 2

    projected = t * d * size + 2 * s * d * size + s * d * size + t * size * d
    per_head = projected + t * size * (2 * s + n) + t * size * (s + n)
    assert [count(heads) for heads in (6, 5, 3)] == [heads * per_head for heads in (6, 5, 3)]


def test_cost_is_proportional_to_heads():
    def counted(heads):
        model = tiny("all_attention")
        if heads < 6:
            cut(model, Mask({s.name: torch.arange(6) < heads for s in sites(model, "heads")}), report=False)
        found = cost(model)
        return found.macs, found.parameters

    macs, parameters = zip(*(counted(heads) for heads in (6, 4, 2)))
    assert macs[0] / 6 == macs[1] / 4 == macs[2] / 2
    assert parameters[0] - parameters[1] == parameters[1] - parameters[2] > 0


@pytest.mark.parametrize("model_type", TYPES)
def test_saved_and_loaded_by_their_own_name(model_type, tmp_path):
    model = tiny(model_type, CAUSAL)
    ids = random_ids(model)
    model.save_pretrained(tmp_path / "stock")
    save(model, tmp_path / "ours")
    with torch.no_grad():
        want = model(ids).logits
        for again in (AutoModelForCausalLM.from_pretrained(tmp_path / "stock"), load(tmp_path / "ours")):
            assert type(again) is type(model)
            assert torch.equal(again(ids).logits, want)


@pytest.mark.parametrize(
    ("config", "parameter"),
    [
        ({"mem_length": 0}, "mem_length"),
        ({"mem_length": -1}, "mem_length"),
        ({"cutoffs": [30, 20]}, "cutoffs"),
        ({"cutoffs": [30, 64]}, "cutoffs"),
        ({"hidden_size": 50}, "hidden_size"),
        ({"div_value": 50}, "div_value"),
    ],
)
def test_configs_that_make_no_sense(config, parameter):
    with pytest.raises(InvalidValueError) as error:
        tiny("all_attention", **config)
    assert error.value.parameter == parameter


def test_without_memory_if_every_earlier_token_counts():
    model = tiny("all_attention", CAUSAL, mem_length=0, same_length=False)
    with torch.no_grad():
        out = model(random_ids(model), mems=())
        assert out.mems[0].shape[1] == 0
        assert torch.equal(
            model(random_ids(model, seed=1), mems=out.mems).logits, model(random_ids(model, seed=1)).logits
        )


def test_slots_are_units_that_are_cut_with_heads_or_alone(tmp_path):
    """A slot is a share of every head: closed before the softmax, cut from keys and values."""
    model = tiny("all_attention", CAUSAL)
    ids, found = random_ids(model), sites(model, "slots", "heads")
    mask = uneven(found, 3, ("slots", "heads"))
    with torch.no_grad():
        whole = model(ids).logits
        with masked(model, mask):
            want = model(ids).logits
        save(cut(model, mask, report=False), tmp_path / "cut")
        torch.testing.assert_close(model(ids).logits, want, atol=1e-5, rtol=0)
        assert torch.equal(load(tmp_path / "cut")(ids).logits, model(ids).logits)
    assert not torch.allclose(whole, want, atol=1e-3)
    assert plan_of(model).keep == {name: m.nonzero().flatten().tolist() for name, m in mask.items()}


@pytest.mark.parametrize("name", ["magnitude", "taylor", "fisher", "random"])
def test_criteria_score_slots(name):
    model = tiny("all_attention", CAUSAL)
    ids, found = random_ids(model), sites(model, "slots")
    scores = criteria.load(name)(model, found, [{"input_ids": ids, "labels": ids}])
    assert [len(score) for score in scores.values()] == [20, 20, 20]
    assert all(len(score.unique()) > 1 for score in scores.values())


def test_the_gradient_of_a_slot_is_that_of_its_gate():
    model = tiny("all_attention", CAUSAL)
    ids, found = random_ids(model, batch=1), sites(model, "slots")
    with gated(found) as gates:
        model(ids, labels=ids).loss.backward()
    scores = criteria.load("taylor")(model, found, [{"input_ids": ids, "labels": ids}], signed=True)
    for name, gate in gates.items():
        torch.testing.assert_close(scores[name], -gate.grad.double(), atol=1e-7, rtol=1e-4)


def test_a_model_without_slots_says_what_it_has():
    with pytest.raises(UnsupportedError):
        sites(tiny("transformer_xl"), "slots")
    with pytest.raises(UnsupportedError):
        sites(tiny("all_attention"), "neurons")
