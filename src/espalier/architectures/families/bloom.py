"""BLOOM: q, k and v interleaved, and an ALiBi slope per head that follows the cut."""

from ..table import Architecture, HeadSpec, NeuronSpec

PLAIN = "if not apply_residual_connection_post_layernorm"

ARCHITECTURE = Architecture(
    models=("bloom",),
    layers="h",
    specs=(
        HeadSpec(
            at="self_attention",
            qkv=(".query_key_value", "(u [q k v] d) m"),
            out=".dense",
            sync={"num_heads": "u"},
            follow="alibi",
            tail="dense ~hidden_dropout +residual",
            private=(f"input_layernorm {PLAIN}",),
        ),
        NeuronSpec(
            up="mlp.dense_h_to_4h",
            down="mlp.dense_4h_to_h",
            private=(f"post_attention_layernorm {PLAIN}",),
        ),
    ),
)
