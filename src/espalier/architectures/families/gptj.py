"""GPT-J."""

from ..table import Architecture, heads, neurons

ARCHITECTURE = Architecture(
    models=("gptj",),
    layers="h",
    parts=(
        heads(
            at="attn",
            d="head_dim",
            q=".q_proj",
            k=".k_proj",
            v=".v_proj",
            out=".out_proj",
            sync={"num_attention_heads": "u"},
            tail="out_proj resid_dropout",
        ),
        neurons(up="mlp.fc_in", down="mlp.fc_out", config="n_inner"),
    ),
    tiny={
        "gptj": {
            "n_embd": 48,
            "n_layer": 3,
            "n_head": 6,
            "n_inner": 40,
            "n_positions": 64,
            "rotary_dim": 4,
        }
    },
)
