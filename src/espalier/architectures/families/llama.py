"""Llama and its descendants: grouped queries, so the unit is a key-value group; a gated network."""

from ..table import Architecture, HeadSpec, NeuronSpec

GROUPED = {"num_attention_heads": "u*g", "num_key_value_heads": "u", "head_dim": "d"}
NETWORK = NeuronSpec(up="mlp.up_proj", gate="mlp.gate_proj", down="mlp.down_proj", config="intermediate_size")

ARCHITECTURE = Architecture(
    models=("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text"),
    layers="layers",
    specs=(HeadSpec(at="self_attn", g="num_key_value_groups", out=".o_proj", config=GROUPED), NETWORK),
    tiny={
        "llama": {"num_key_value_heads": 3, "attention_bias": True, "mlp_bias": True},
        "mistral": {"num_key_value_heads": 3, "sliding_window": 4},
        "qwen2": {"num_key_value_heads": 3},
        "qwen3": {"num_key_value_heads": 3, "head_dim": 8, "attention_bias": True},
        "gemma2": {"num_key_value_heads": 3, "head_dim": 8, "sliding_window": 4},
        "gemma3_text": {"num_key_value_heads": 3, "head_dim": 8, "sliding_window": 4},
    },
)
