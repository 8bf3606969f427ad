"""Every architecture keeps the contract; a new table is tested without another line."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from espalier import Mask, cut, masked, sites
from espalier.architectures.table import architectures
from espalier.core.errors import UnknownNameError
from espalier.testing.architecture import CHECKS
from espalier.testing.tiny import inputs, outputs, same, tiny, uneven

ENCODERS = "bert roberta xlm-roberta camembert electra distilbert albert deberta-v2 mpnet modernbert"
MORE_ENCODERS = "ernie roformer esm vit deit dinov2 clip wav2vec2"
DECODERS = "gpt2 gpt_neox gptj opt bloom llama mistral qwen2 qwen3 gemma2 gemma3_text phi phi3 olmo2"
BOTH = "bart mbart t5 mt5 whisper"

# Settings that change what a block of a type is made of.
VARIANTS = {
    "albert, one block for all layers": ("albert", {"num_hidden_groups": 1}),
    "albert, two blocks in a group": ("albert", {"inner_group_num": 2, "num_hidden_groups": 1}),
    "bert, a decoder": ("bert", {"is_decoder": True}),
    "deberta, shared position keys": ("deberta-v2", {"share_att_key": True}),
    "deberta, absolute positions": ("deberta-v2", {"relative_attention": False}),
    "deberta, with a convolution": ("deberta-v2", {"conv_kernel_size": 3, "conv_act": "gelu"}),
    "dinov2, gated": ("dinov2", {"use_swiglu_ffn": True}),
    "esm, absolute positions": ("esm", {"position_embedding_type": "absolute"}),
    "gpt2, scaled by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "gpt2, reordered": ("gpt2", {"reorder_and_upcast_attn": True}),
    "gpt_neox, one after the other": ("gpt_neox", {"use_parallel_residual": False}),
    "llama, one head per group": ("llama", {"num_key_value_heads": 6}),
    "llama, one group": ("llama", {"num_key_value_heads": 1}),
    "llama, free head size": ("llama", {"head_dim": 4}),
    "opt, norm after": ("opt", {"do_layer_norm_before": False}),
    "opt, narrow embeddings": ("opt", {"word_embed_proj_dim": 16}),
    "phi, normed": ("phi", {"qk_layernorm": True}),
    "roformer, turned values": ("roformer", {"rotary_value": True}),
    "t5, gated": ("t5", {"feed_forward_proj": "gated-gelu"}),
    "wav2vec2, stable norm": (
        "wav2vec2",
        {"do_stable_layer_norm": True, "feat_extract_norm": "layer"},
    ),
}


def test_every_promised_type_has_a_table():
    promised = f"{ENCODERS} {MORE_ENCODERS} {DECODERS} {BOTH}".split()
    assert set(promised) <= set(architectures())


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("kind", sorted(architectures()))
def test_contract(kind, check):
    CHECKS[check](kind)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_gated_is_cut_in_every_variant(variant, attention):
    kind, config = VARIANTS[variant]
    for turn in range(3):
        model = tiny(kind, attention=attention, **config)
        given, mask = inputs(model), uneven(sites(model), turn)
        with masked(model, mask):
            want = outputs(model, given)
        cut(model, mask, report=False)
        same(outputs(model, given), want, variant)


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2"])
def test_cross_attention_of_decoders_that_can_have_it(kind):
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    more = {"is_decoder": True} if kind != "gpt2" else {}
    for turn in range(3):
        model = tiny(kind, "AutoModelForCausalLM", add_cross_attention=True, **more)
        given = inputs(model)
        given["encoder_hidden_states"] = torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(3))
        found = sites(model, "heads")
        assert [s.spec.name for s in found[:2]] == ["heads", "cross_heads"]
        mask = uneven(sites(model), turn)
        with masked(model, mask):
            want = outputs(model, given)
        cut(model, mask, report=False)
        same(outputs(model, given), want, kind)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        ids, given["use_cache"] = given.pop("input_ids"), True
        given.pop("attention_mask")
        steps = []
        with torch.no_grad():
            whole = model(input_ids=ids, **{**given, "use_cache": False}).logits
            for token in ids.split(1, dim=1):
                steps.append(model(input_ids=token, past_key_values=cache, **given).logits)
        same([torch.cat(steps, 1)], [whole], f"{kind}, token by token")


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2", "t5", "bart"])
def test_static_cache(kind):
    """A cache of fixed size, as compiled generation uses it, follows the cut too."""
    top = "AutoModelForSeq2SeqLM" if kind in ("t5", "bart") else "AutoModelForCausalLM"
    for turn in range(3):
        model = cut(tiny(kind, top), uneven(sites(tiny(kind, top)), turn), report=False)
        ids = inputs(model)["input_ids"]
        options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
        want = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        got = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            **options,
            cache_implementation="static",
            disable_compile=True,
        )
        assert torch.equal(got, want)


@pytest.mark.parametrize("kind", ["bert", "t5", "bloom", "mpnet", "gpt2"])
def test_a_layer_without_heads_never_attends(kind, monkeypatch):
    """Not only fewer operations: with no head left anywhere, no softmax is computed at all."""
    model = tiny(kind, attention="eager")
    mask = {s.name: torch.zeros(s.units, dtype=torch.bool) for s in sites(model, "heads")}
    cut(model, Mask(mask), report=False)

    def attends(*_, **__):
        raise AssertionError("something attended")

    monkeypatch.setattr(torch.nn.functional, "softmax", attends)
    monkeypatch.setattr(torch, "softmax", attends)
    outputs(model, inputs(model))


def test_an_unknown_type_is_refused():
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("mamba", hidden_size=16, num_hidden_layers=1, vocab_size=8)
    )
    with pytest.raises(UnknownNameError) as error:
        sites(model)
    assert error.value.name == "mamba"
    assert error.value.known == sorted(architectures())
