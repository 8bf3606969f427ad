"""ModernBERT: fused q, k and v, and a fused, gated feed-forward network."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("modernbert",),
    layers="layers",
    drops_tokens=("modernbert",),
    specs=(
        HeadSpec(
            at="attn", qkv=(".Wqkv", "([q k v] u d) m"), out=".Wo", tail="Wo out_drop", private=("attn_norm",)
        ),
        NeuronSpec(
            up_gate=("mlp.Wi", "([up gate] u) m"),
            down="mlp.Wo",
            config="intermediate_size",
            private=("mlp_norm",),
        ),
    ),
    lacking={"attn_norm": "final_norm"},  # the embeddings are normalised already
    tiny={
        "modernbert": {
            "cls_token_id": 1,
            "sep_token_id": 2,
            "global_attn_every_n_layers": 2,
            "local_attention": 8,
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
        }
    },
)
