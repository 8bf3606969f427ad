"""BERT and its descendants: separate q, k and v, a two-matrix feed-forward network."""

from typing import Any

from ..table import Architecture, HeadSpec, NeuronSpec


def attention(q: str = ".query", k: str = ".key", v: str = ".value", **more: Any) -> HeadSpec:
    """Return the heads of a module that keeps their sizes under BERT's names."""
    sync = {"num_attention_heads": "u", "all_head_size": "u*d"}
    return HeadSpec(d="attention_head_size", q=q, k=k, v=v, sync=sync, **more)


ARCHITECTURE = Architecture(
    models=("bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie", "esm", "roformer"),
    layers="encoder.layer",
    tokenwise_from="attention.output",
    drops_tokens=("bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie"),
    specs=(
        attention(at="attention.self", out="attention.output.dense", private=("attention.LayerNorm",)),
        attention(
            name="cross_heads",
            at="crossattention.self",
            out="crossattention.output.dense",
            optional=True,
            private=("crossattention.LayerNorm",),
        ),
        NeuronSpec(
            up="intermediate.dense",
            down="output.dense",
            config="intermediate_size",
            private=("LayerNorm",),  # these norms are ESM's, the only one here with norms before
        ),
    ),
    position_offset=dict.fromkeys(("roberta", "xlm-roberta", "camembert", "esm"), "pad_token_id+1"),
    tiny={
        "electra": {"embedding_size": 16},
        "roformer": {"embedding_size": 16},
        "esm": {"mask_token_id": 3, "token_dropout": True, "position_embedding_type": "rotary"},
    },
    fixed={"esm": "its contact head reads the attention maps of every layer"},
    about={"esm": "its contact head reads every attention map, so predict_contacts needs all heads"},
)
