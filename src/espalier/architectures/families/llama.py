"""Llama and its descendants: grouped queries, so the unit is a key-value group; a gated network."""

from typing import Any

from ..table import Architecture, HeadSpec, NeuronSpec

GROUPED = {"num_attention_heads": "u*g", "num_key_value_heads": "u", "head_dim": "d"}
QK_NORMS = ("self_attn.q_norm", "self_attn.k_norm")


def network(*private: str) -> NeuronSpec:
    """Return the gated network."""
    reads: Any = {"up": "mlp.up_proj", "gate": "mlp.gate_proj"}
    return NeuronSpec(**reads, down="mlp.down_proj", config="intermediate_size", private=private)


ARCHITECTURE = Architecture(
    models=("llama", "mistral", "qwen2", "qwen3"),
    layers="layers",
    specs=(
        HeadSpec(
            at="self_attn",
            g="num_key_value_groups",
            out=".o_proj",
            config=GROUPED,
            private=("input_layernorm", *QK_NORMS),
        ),
        network("post_attention_layernorm"),
    ),
    tiny={
        "llama": {"num_key_value_heads": 3, "attention_bias": True, "mlp_bias": True},
        "mistral": {"num_key_value_heads": 3, "sliding_window": 4},
        "qwen2": {"num_key_value_heads": 3},
        "qwen3": {"num_key_value_heads": 3, "head_dim": 8, "attention_bias": True},
    },
)
