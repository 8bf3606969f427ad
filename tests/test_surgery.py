import copy
import logging
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.prune import l1_unstructured

from espalier import (
    EspalierError,
    Mask,
    Plan,
    cost,
    cut,
    masked,
    plan_of,
    prune_heads,
    save,
    sites,
    zero,
)
from espalier.testing.architecture import answers, inputs, same, tiny, uneven


def test_prune_heads_as_in_transformers_4(bert):
    prune_heads(bert, {0: [0, 5], 2: [1]})
    assert plan_of(bert).keep["encoder.layer.0/heads"] == [1, 2, 3, 4]
    prune_heads(bert, {0: [0, 1]})  # the numbering is that of the unpruned model; 0 is gone already
    assert plan_of(bert).keep["encoder.layer.0/heads"] == [2, 3, 4]
    assert bert.bert.encoder.layer[0].attention.self.query.out_features == 24
    prune_heads(bert, {"encoder.layer.1/heads": range(6)})
    assert [s.units for s in sites(bert, "heads")] == [3, 0, 5]
    answers(bert, inputs(bert))


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({7: [0]}, "no layer 7: there are 3, 0 to 2"),
        ({-1: [0]}, "no layer -1"),
        ({0: [6]}, "has no head 6: it has 6, 0 to 5"),
        ({0: [-1]}, "has no head -1"),
        ({"encoder.layer.9/heads": [0]}, "did you mean"),
    ],
)
def test_heads_that_are_not_there(bert, heads, message):
    with pytest.raises(EspalierError, match=message):
        prune_heads(bert, heads)
    assert plan_of(bert).keep == {}


def test_grouped_queries_go_by_group():
    model = tiny("llama")
    with pytest.raises(
        EspalierError, match=r"3 key-value groups.*single query head.*Query head 4 is in group 2"
    ):
        prune_heads(model, {0: [4]})
    with pytest.raises(EspalierError, match="group of 2 query heads"):
        cut(model, Mask({"layers.0/heads": torch.tensor([True] * 5 + [False])}))
    prune_heads(model, {0: [1]})
    assert model.layers[0].self_attn.q_proj.out_features == 32
    assert model.layers[0].self_attn.k_proj.out_features == 16


def test_encoder_decoders_want_names():
    model = tiny("bart")
    with pytest.raises(EspalierError, match=r"several rows of layers.*decoder.layers.2/heads"):
        prune_heads(model, {0: [1]})
    prune_heads(model, {"decoder.layers.2/cross_heads": [1]})
    assert model.decoder.layers[2].encoder_attn.q_proj.out_features == 40


def test_a_cut_says_what_it_did(bert, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a program that set up none
    prune_heads(bert, {0: [0, 5]})
    said = capsys.readouterr().err
    assert "heads 18 → 16 (−11.1%)" in said
    assert "parameters" in said
    assert "block MACs at 128 tokens" in said


def test_never_a_silent_no_op(bert, caplog):
    with pytest.raises(EspalierError, match="the mask is empty"):
        cut(bert, Mask())
    with pytest.raises(EspalierError, match=r"for another model: there is no site 'layers.0/heads'"):
        cut(bert, Mask.ones(sites(tiny("llama"), "heads")))
    cut(bert, Mask.ones(sites(bert)))
    assert "nothing to cut" in caplog.text
    with pytest.raises(EspalierError, match="a Mask or a Plan is needed; got list"):
        cut(bert, [1, 0])


def test_a_table_that_predicts_wrongly_is_caught(bert, monkeypatch):
    from espalier.architectures.site import Site

    monkeypatch.setattr(Site, "parameters_per_unit", lambda self: 7)
    with pytest.raises(EspalierError, match=r"parameters left the model and not 7"):
        prune_heads(bert, {0: [0]})


def test_masks_count_what_is_left_and_plans_what_there_was(bert):
    prune_heads(bert, {0: [0, 1]})
    mask = Mask.ones(sites(bert, "heads"))
    mask["encoder.layer.0/heads"][0] = False  # the third head of the unpruned model
    with pytest.raises(EspalierError, match="A Mask counts the units that are left"):
        cut(bert, Mask({"encoder.layer.0/heads": torch.tensor([True] * 6)}))
    cut(bert, mask)
    assert plan_of(bert).keep["encoder.layer.0/heads"] == [3, 4, 5]
    with pytest.raises(EspalierError, match=r"keeps unit 0 of encoder.layer.0/heads, which has been cut"):
        cut(bert, Plan({"encoder.layer.0/heads": [0, 3]}, {"encoder.layer.0/heads": 6}))
    with pytest.raises(EspalierError, match=r"for another model: encoder.layer.0/heads has 6 units, not 12"):
        cut(bert, Plan({"encoder.layer.0/heads": [3]}, {"encoder.layer.0/heads": 12}))
    with pytest.raises(EspalierError, match=r"for another model: there is no site"):
        cut(bert, Plan({"h.0/heads": [3]}, {"h.0/heads": 12}))


def test_a_failed_cut_changes_nothing(bert):
    want = answers(bert, inputs(bert))
    value = bert.bert.encoder.layer[2].attention.self.value
    strange = nn.Module()
    strange.weight, strange.bias, strange.forward = value.weight, value.bias, value.forward
    bert.bert.encoder.layer[2].attention.self.value = strange
    with pytest.raises(EspalierError, match=r"is a Module, not a linear layer.*merge_and_unload"):
        cut(bert, uneven(sites(bert), 1))
    assert [s.units for s in sites(bert, "heads")] == [6, 6, 6]
    assert plan_of(bert).keep == {}
    same(answers(bert, inputs(bert)), want, "untouched", exact=True)


def test_quantised_models_are_refused(bert):
    bert.config.quantization_config = {"quant_method": "bitsandbytes"}
    with pytest.raises(EspalierError, match="first, then quantise"):
        prune_heads(bert, {0: [0]})


def test_tied_weights_stay_tied():
    model = tiny("gpt2", "AutoModelForCausalLM")
    assert model.lm_head.weight is model.transformer.wte.weight
    cut(model, uneven(sites(model), 0))
    assert model.lm_head.weight is model.transformer.wte.weight


def test_a_cut_in_the_middle_of_training(bert):
    """Autograd remembers the old size of a parameter while an old loss is alive."""
    given, labels = inputs(bert), torch.tensor([0, 1])
    loss = bert(**given, labels=labels).loss
    loss.backward()
    prune_heads(bert, {0: [0]})
    again = bert(**given, labels=labels).loss
    again.backward()
    assert bert.bert.encoder.layer[0].attention.self.query.weight.grad.shape == (40, 48)
    assert loss.item() != again.item()


def test_a_cut_under_inference_mode_can_still_be_trained(bert):
    with torch.inference_mode():
        prune_heads(bert, {0: [0]})
    bert(**inputs(bert), labels=torch.tensor([0, 1])).loss.backward()


def test_two_models_that_share_a_config_do_not_share_a_cut(bert, tmp_path):
    twin = type(bert)(bert.config)
    prune_heads(bert, {0: [0]})
    for use in (plan_of, lambda m: prune_heads(m, {1: [0]}), lambda m: save(m, tmp_path / "m")):
        with pytest.raises(EspalierError, match="remembers a cut that this model has not had"):
            use(twin)
    assert plan_of(bert).keep["encoder.layer.0/heads"] == [1, 2, 3, 4, 5]


def test_numbers_run_along_self_attention():
    """A decoder with cross-attention: layer 1 is the second layer, not the cross-attention of the first."""
    model = tiny("bert", "AutoModelForCausalLM", is_decoder=True, add_cross_attention=True)
    prune_heads(model, {1: [0]})
    lost = [s.name for s in sites(model, "heads") if s.units == 5]
    assert lost == ["encoder.layer.1/heads"]


def test_plain_dicts_and_odd_numbers_are_taken_for_what_they_mean(bert):
    cut(bert, {"encoder.layer.0/heads": torch.tensor([1, 0, 1, 1, 1, 1])})
    prune_heads(bert, {np.int64(1): [np.int64(3)]})
    assert [s.units for s in sites(bert, "heads")] == [5, 5, 6]
    for wrong, message in (
        ({0: 1}, r"a list, \[0, 3\]; got 1"),
        ({0.5: [1]}, "a number or a site's name"),
    ):
        with pytest.raises(EspalierError, match=message):
            prune_heads(bert, wrong)
    with pytest.raises(EspalierError, match="not a transformers model"):
        cut(nn.Linear(2, 2), Mask({"x": torch.ones(2)}))
    weight = sites(bert, "weights")[0]
    with pytest.raises(EspalierError, match="that is for zero"):
        cut(bert, Mask({weight.name: torch.ones(weight.shape)}))


def test_no_cut_under_gates(bert):
    mask = Mask.without(sites(bert, "heads"), {1: [0]})
    with masked(bert, mask), pytest.raises(EspalierError, match="the model is gated"):
        cut(bert, mask)
    cut(bert, mask)


def test_keys_as_json_has_them(bert):
    prune_heads(bert, {"0": [3]})
    assert plan_of(bert).keep["encoder.layer.0/heads"] == [0, 1, 2, 4, 5]
    with pytest.raises(EspalierError, match=r"takes \{layer: \[heads\]\}; got list"):
        prune_heads(bert, [1, 2])
    with pytest.raises(EspalierError, match="unit by unit: that is for cut"):
        zero(bert, Mask.ones(sites(bert, "heads")))


def test_weights_that_are_computed_are_refused_before_anything_is_cut(bert):
    l1_unstructured(bert.bert.encoder.layer[2].attention.self.value, "weight", 0.5)
    with pytest.raises(EspalierError, match=r"computed from others.*prune.remove"):
        cut(bert, uneven(sites(bert), 1))
    assert [s.units for s in sites(bert, "heads")] == [6, 6, 6]


def test_a_model_spread_over_devices_is_refused(bert):
    from accelerate.hooks import ModelHook, add_hook_to_module

    add_hook_to_module(bert.bert.encoder.layer[0].attention.self, ModelHook())
    with pytest.raises(EspalierError, match="Cut it first, then dispatch"):
        prune_heads(bert, {0: [1]})


@pytest.mark.parametrize("kind", ["bert", "t5", "gpt2", "bloom"])
def test_gradient_checkpointing_gives_the_same_gradients(kind):
    model = tiny(kind)
    cut(model, uneven(sites(model), 1), report=False)
    given = inputs(model)
    out = model(**given).last_hidden_state
    want = torch.autograd.grad(
        out.square().mean(), [p for p in model.parameters() if p.numel()], allow_unused=True
    )
    model.train()
    model.gradient_checkpointing_enable()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for name in ("dropout", "attention_dropout", "hidden_dropout"):
        for module in model.modules():
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    out = model(**given).last_hidden_state
    got = torch.autograd.grad(
        out.square().mean(), [p for p in model.parameters() if p.numel()], allow_unused=True
    )
    for a, b in zip(got, want):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["llama", "t5", "gpt2"])
def test_beams(kind):
    top = "AutoModelForSeq2SeqLM" if kind == "t5" else "AutoModelForCausalLM"
    for turn in range(6):
        model = tiny(kind, top)
        ids = inputs(model)["input_ids"]
        mask = uneven(sites(model), turn)
        options = {"num_beams": 3, "max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
        with masked(model, mask):
            want = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        cut(model, mask, report=False)
        assert torch.equal(model.generate(ids, attention_mask=torch.ones_like(ids), **options), want)


def test_every_parameter_of_an_emptied_layer_takes_part(bert):
    """Distributed training waits for a gradient of each, also of the empty ones."""
    cut(bert, uneven(sites(bert), 1), report=False)
    bert(**inputs(bert), labels=torch.tensor([0, 1])).loss.backward()
    assert all(p.grad is not None for p in bert.parameters())


@pytest.mark.parametrize("kind", ["bert", "t5", "bloom", "phi3", "gpt2"])
def test_copies_are_independent(kind):
    """Grafted modules and local configs survive copying, also into another process."""
    model = tiny(kind)
    given = inputs(model)
    cut(model, uneven(sites(model), 1), report=False)
    want = answers(model, given)
    twin = copy.deepcopy(model)
    sent = pickle.loads(pickle.dumps(model))  # noqa: S301 - what a worker process would be sent
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    same(answers(twin, given), want, "deepcopy", exact=True)
    same(answers(sent, given), want, "pickle", exact=True)


def test_switching_attention_reaches_a_cut_layer():
    """Phi 3 asks its config for its size; a private copy of it would not hear of the switch."""
    model = tiny("phi3")
    cut(model, uneven(sites(model), 1), report=False)
    given = {"input_ids": inputs(model)["input_ids"]}  # eager and sdpa differ in rows that are all padding
    want = answers(model, given)
    model.set_attn_implementation("eager")
    assert {layer.self_attn.config._attn_implementation for layer in model.layers} == {"eager"}
    same(answers(model, given), want, "eager")


def test_zero_keeps_the_shape():
    model = tiny("gpt2")
    site = sites(model, "weights")[0]
    mask = Mask({site.name: torch.rand(site.shape) > 0.5})
    count = cost(model).parameters
    zero(model, mask)
    assert cost(model).parameters == count
    assert torch.equal(site.linear.weight != 0, mask[site.name])
    with pytest.raises(EspalierError, match="there is no site"):
        cut(model, Mask({"h.9/heads": torch.ones(6)}))


def test_cost_counts_the_whole_model():
    model = tiny("bert")
    total = cost(model, tokens=10)
    assert total.parameters == sum(p.numel() for p in model.parameters())
    assert (total.heads, total.neurons) == (18, 120)
    per_layer = 10 * (4 * 48 * 48 + 2 * 48 * 40) + 2 * 10 * 10 * 48
    assert total.macs == 3 * per_layer
