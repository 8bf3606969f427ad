"""Cutting: what is removed, what is recorded, and what is refused before anything changes."""

import copy
import logging
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.prune import l1_unstructured

from espalier import (
    Mask,
    Plan,
    cost,
    cut,
    load,
    masked,
    plan_of,
    prune_heads,
    save,
    sites,
    zero,
)
from espalier.core.errors import InvalidValueError, UnknownNameError, UnsupportedError
from espalier.testing.tiny import inputs, outputs, same, tiny, uneven


def test_prune_heads_as_in_transformers_4(bert):
    prune_heads(bert, {0: [0, 5], 2: [1]})
    assert plan_of(bert).keep["encoder.layer.0/heads"] == [1, 2, 3, 4]
    prune_heads(bert, {0: [0, 1]})  # the numbering is that of the unpruned model; 0 is removed already
    assert plan_of(bert).keep["encoder.layer.0/heads"] == [2, 3, 4]
    assert bert.bert.encoder.layer[0].attention.self.query.out_features == 24
    prune_heads(bert, {"encoder.layer.1/heads": range(6)})
    assert [s.units for s in sites(bert, "heads")] == [3, 0, 5]
    outputs(bert, inputs(bert))


@pytest.mark.parametrize(
    "heads",
    [{7: [0]}, {-4: [0]}, {0: [6]}, {0: [-1]}, {"encoder.layer.9/heads": [0]}, {0: 1}, {0.5: [1]}, [1, 2]],
)
def test_heads_that_do_not_exist(bert, heads):
    with pytest.raises(InvalidValueError) as error:
        prune_heads(bert, heads)
    assert error.value.parameter == "heads"
    if isinstance(error.value, UnknownNameError):
        assert error.value.nearest in error.value.known
    assert plan_of(bert).keep == {}


def test_grouped_queries_go_by_group():
    model = tiny("llama")
    with pytest.raises(InvalidValueError):
        prune_heads(model, {0: [4]})
    with pytest.raises(InvalidValueError) as error:
        cut(model, Mask({"layers.0/heads": torch.tensor([True] * 5 + [False])}))
    assert error.value.parameter == "mask"
    prune_heads(model, {0: [1]})
    assert model.layers[0].self_attn.q_proj.out_features == 32
    assert model.layers[0].self_attn.k_proj.out_features == 16


@pytest.mark.parametrize("last", [-1, "-1", 2])
def test_layers_count_from_the_end_if_negative(bert, last):
    prune_heads(bert, {last: [0], -3: [1, 2]})
    assert [s.units for s in sites(bert, "heads")] == [4, 6, 5]


@pytest.mark.parametrize("model_type", ["t5", "bart", "whisper"])
def test_layers_of_an_encoder_decoder_are_the_encoders(model_type):
    model = tiny(model_type)
    prune_heads(model, {0: [1], -1: [0, 2]})
    assert {n.partition(".")[0] for n, kept in plan_of(model).keep.items() if len(kept) < 6} == {"encoder"}
    assert [s.units for s in sites(model.encoder, "heads")] == [5, 6, 4]
    last = [s.name for s in sites(model, "heads") if s.spec.name == "cross_heads"][-1]
    prune_heads(model, {last: [1]})
    assert [s.units for s in sites(model, "heads")][-1] == 5


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("model_type", ["t5", "bart"])
def test_a_stack_alone_is_a_model(model_type, stack, tmp_path):
    whole = tiny(model_type)
    given, part = inputs(whole), getattr(whole, stack)
    given = {name: given[name] for name in ("input_ids", "attention_mask")}
    with masked(part, Mask.without(sites(part, "heads"), {0: [1], -1: range(6)})):
        want = outputs(part, given)
    names = [s.name for s in sites(part, "heads")]
    prune_heads(part, {0: [1], names[-1]: range(6)})
    same(outputs(part, given), want, "a stack")
    assert plan_of(whole).keep == {}  # the record is the stack's own, also where the config was shared
    with pytest.raises(UnsupportedError):
        save(whole, tmp_path / "whole")
    save(part, tmp_path / "part")
    same(outputs(load(tmp_path / "part", cls=type(part)), given), outputs(part, given), "loaded", exact=True)


def test_layers_that_share_one_block_are_that_block():
    model = tiny("albert", num_hidden_layers=4, num_hidden_groups=1)
    prune_heads(model, {2: [0], -1: [1]})
    assert [s.units for s in sites(model, "heads")] == [4]
    with pytest.raises(InvalidValueError):
        prune_heads(model, {4: [2]})
    blocks = tiny("albert")  # three, each of two layers: as in transformers 4, numbers count blocks
    prune_heads(blocks, {2: [0]})
    assert [s.units for s in sites(blocks, "heads")] == [6, 6, 5]


def test_layers_of_towers_are_named():
    with pytest.raises(InvalidValueError):
        prune_heads(tiny("clip"), {0: [1]})


@pytest.fixture
def process_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "qwen3", "t5"])  # their norms come before the heads
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_distributed_training_finds_every_weight_of_a_layer_without_heads(model_type, process_group):
    model = tiny(model_type)
    cut(model, Mask.without(sites(model, "heads"), {0: range(sites(model, "heads")[0].units)}), report=False)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    for _ in range(2):  # the second pass raises if a weight got no gradient in the first
        parallel(**inputs(model)).last_hidden_state.square().mean().backward()


def test_whisper_generates_without_cross_attention():
    model = tiny("whisper", "AutoModelForSpeechSeq2Seq", attention="eager")
    prune_heads(model, {f"decoder.layers.{i}/cross_heads": range(6) for i in (0, 2)})
    features = inputs(model)["input_features"]
    options = {"return_dict_in_generate": True, "output_attentions": True, "max_new_tokens": 3}
    found = model.generate(features, **options)
    for step in found.cross_attentions:
        assert [tuple(one.shape) for one in step] == [(2, 0, 1, 12), (2, 6, 1, 12), (2, 0, 1, 12)]


@pytest.mark.parametrize("cached", [False, True])
def test_the_map_of_a_layer_without_heads_has_its_queries_and_keys(cached):
    model = tiny("bloom", "AutoModelForCausalLM", attention="eager")
    prune_heads(model, {1: range(6)})
    ids = inputs(model)["input_ids"]
    with torch.no_grad():
        past = model(ids[:, :5], use_cache=True).past_key_values if cached else None
        maps = model(ids[:, 5:], past_key_values=past, output_attentions=True).attentions
    keys = 17 if cached else 12
    assert [tuple(one.shape) for one in maps] == [(2, 6, 12, keys), (2, 0, 12, keys), (2, 6, 12, keys)]


def test_a_cut_logs_the_cost(bert, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a program that set up none
    prune_heads(bert, {0: [0, 5]})
    assert "18 → 16" in capsys.readouterr().err


def test_never_a_silent_no_op(bert, caplog):
    for wrong in (Mask(), [1, 0], Mask.ones(sites(tiny("llama"), "heads"))):
        with pytest.raises(InvalidValueError) as error:
            cut(bert, wrong)
        assert error.value.parameter == "mask"
    cut(bert, Mask.ones(sites(bert)))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_table_that_predicts_wrongly_is_caught(bert, monkeypatch):
    from espalier.architectures.site import Site

    monkeypatch.setattr(Site, "parameters_per_unit", lambda self: 7)
    with pytest.raises(UnsupportedError):
        prune_heads(bert, {0: [0]})


def test_masks_count_what_is_left_and_plans_what_there_was(bert):
    prune_heads(bert, {0: [0, 1]})
    mask = Mask.ones(sites(bert, "heads"))
    mask["encoder.layer.0/heads"][0] = False  # the third head of the unpruned model
    with pytest.raises(InvalidValueError):
        cut(bert, Mask({"encoder.layer.0/heads": torch.tensor([True] * 6)}))
    cut(bert, mask)
    assert plan_of(bert).keep["encoder.layer.0/heads"] == [3, 4, 5]
    for name, kept, units in (
        ("encoder.layer.0/heads", [0, 3], 6),  # 0 was cut
        ("encoder.layer.0/heads", [3], 12),  # another model's
        ("h.0/heads", [3], 12),
    ):
        with pytest.raises(InvalidValueError) as error:
            cut(bert, Plan({name: kept}, {name: units}))
        assert error.value.parameter == "plan"


def test_a_failed_cut_changes_nothing(bert):
    want = outputs(bert, inputs(bert))
    value = bert.bert.encoder.layer[2].attention.self.value
    strange = nn.Module()
    strange.weight, strange.bias, strange.forward = value.weight, value.bias, value.forward
    bert.bert.encoder.layer[2].attention.self.value = strange
    with pytest.raises(UnsupportedError):
        cut(bert, uneven(sites(bert), 1))
    assert [s.units for s in sites(bert, "heads")] == [6, 6, 6]
    assert plan_of(bert).keep == {}
    same(outputs(bert, inputs(bert)), want, "untouched", exact=True)


def test_quantised_models_are_refused(bert):
    bert.config.quantization_config = {"quant_method": "bitsandbytes"}
    with pytest.raises(UnsupportedError):
        prune_heads(bert, {0: [0]})


def test_tied_weights_stay_tied():
    model = tiny("gpt2", "AutoModelForCausalLM")
    assert model.lm_head.weight is model.transformer.wte.weight
    cut(model, uneven(sites(model), 0))
    assert model.lm_head.weight is model.transformer.wte.weight


def test_a_cut_in_the_middle_of_training(bert):
    """Autograd keeps the old size of a parameter while the graph of an old loss exists."""
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
    other = type(bert)(bert.config)
    prune_heads(bert, {0: [0]})
    for use in (plan_of, lambda m: prune_heads(m, {1: [0]}), lambda m: save(m, tmp_path / "m")):
        with pytest.raises(UnsupportedError):
            use(other)
    assert plan_of(bert).keep["encoder.layer.0/heads"] == [1, 2, 3, 4, 5]


def test_numbers_run_along_self_attention():
    """A decoder with cross-attention: layer 1 is the second layer, not the cross-attention of the first."""
    model = tiny("bert", "AutoModelForCausalLM", is_decoder=True, add_cross_attention=True)
    prune_heads(model, {1: [0]})
    lost = [s.name for s in sites(model, "heads") if s.units == 5]
    assert lost == ["encoder.layer.1/heads"]


def test_plain_dicts_and_numpy_integers_are_accepted(bert):
    cut(bert, {"encoder.layer.0/heads": torch.tensor([1, 0, 1, 1, 1, 1])})
    prune_heads(bert, {np.int64(1): [np.int64(3)]})
    assert [s.units for s in sites(bert, "heads")] == [5, 5, 6]


def test_masks_of_units_and_of_weights_are_told_apart(bert):
    weight = sites(bert, "weights")[0]
    with pytest.raises(UnknownNameError):
        cut(bert, Mask({weight.name: torch.ones(weight.shape)}))
    with pytest.raises(UnknownNameError):
        zero(bert, Mask.ones(sites(bert, "heads")))
    with pytest.raises(UnsupportedError):
        cut(nn.Linear(2, 2), Mask({"x": torch.ones(2)}))


def test_no_cut_under_gates(bert):
    mask = Mask.without(sites(bert, "heads"), {1: [0]})
    with masked(bert, mask), pytest.raises(UnsupportedError):
        cut(bert, mask)
    cut(bert, mask)


def test_keys_as_json_has_them(bert):
    prune_heads(bert, {"0": [3]})
    assert plan_of(bert).keep["encoder.layer.0/heads"] == [0, 1, 2, 4, 5]


def test_the_record_in_the_config_stays_readable():
    """Folders saved by older versions depend on these keys."""
    model = tiny("t5")
    prune_heads(model, {"encoder.block.0/heads": range(1, 6)})
    record = model.config.quantization_config
    assert list(record) == ["quant_method", "version", "plan", "skeleton"]
    assert (record["quant_method"], record["version"]) == ("espalier", 1)
    assert list(record["plan"]) == ["version", "keep", "units", "origin"]
    assert record["plan"]["keep"]["encoder.block.0/heads"] == "0"
    skeleton = record["skeleton"]
    assert list(skeleton) == ["shapes", "attributes", "grafts"]
    assert skeleton["shapes"]["encoder.block.0.layer.0.SelfAttention.q.weight"] == [8, 48]
    assert skeleton["attributes"]["encoder.block.0.layer.0.SelfAttention.n_heads"] == 1
    assert skeleton["grafts"]["encoder.block.0.layer.0.SelfAttention"]["as"] == ["SharedBias"]


def test_weights_that_are_computed_are_refused_before_anything_is_cut(bert):
    l1_unstructured(bert.bert.encoder.layer[2].attention.self.value, "weight", 0.5)
    with pytest.raises(UnsupportedError):
        cut(bert, uneven(sites(bert), 1))
    assert [s.units for s in sites(bert, "heads")] == [6, 6, 6]


def test_a_model_spread_over_devices_is_refused(bert):
    from accelerate.hooks import ModelHook, add_hook_to_module

    add_hook_to_module(bert.bert.encoder.layer[0].attention.self, ModelHook())
    with pytest.raises(UnsupportedError):
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
    """Grafted modules and local configs can be copied, also into another process."""
    model = tiny(kind)
    given = inputs(model)
    cut(model, uneven(sites(model), 1), report=False)
    want = outputs(model, given)
    copied = copy.deepcopy(model)
    sent = pickle.loads(pickle.dumps(model))  # noqa: S301 - what a worker process would be sent
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    same(outputs(copied, given), want, "deepcopy", exact=True)
    same(outputs(sent, given), want, "pickle", exact=True)


def test_switching_attention_reaches_a_cut_layer():
    """Phi 3 reads its size from its config; a private copy of it would miss the switch."""
    model = tiny("phi3")
    cut(model, uneven(sites(model), 1), report=False)
    given = {"input_ids": inputs(model)["input_ids"]}  # eager and sdpa differ in rows that are all padding
    want = outputs(model, given)
    model.set_attn_implementation("eager")
    assert {layer.self_attn.config._attn_implementation for layer in model.layers} == {"eager"}
    same(outputs(model, given), want, "eager")


def test_zero_keeps_the_shape():
    model = tiny("gpt2")
    site = sites(model, "weights")[0]
    mask = Mask({site.name: torch.rand(site.shape) > 0.5})
    count = cost(model).parameters
    zero(model, mask)
    assert cost(model).parameters == count
    assert torch.equal(site.linear.weight != 0, mask[site.name])
    with pytest.raises(UnknownNameError):
        cut(model, Mask({"h.9/heads": torch.ones(6)}))


def test_cost_counts_the_whole_model():
    model = tiny("bert")
    total = cost(model, tokens=10)
    assert total.parameters == sum(p.numel() for p in model.parameters())
    assert (total.heads, total.neurons) == (18, 120)
    per_layer = 10 * (4 * 48 * 48 + 2 * 48 * 40) + 2 * 10 * 10 * 48
    assert total.macs == 3 * per_layer
