"""GPT-J."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("gptj",),
    layers="h",
    specs=(
        HeadSpec(
            at="attn",
            d="head_dim",
            out=".out_proj",
            sync={"num_attention_heads": "u"},
            tail="out_proj resid_dropout",
        ),
        NeuronSpec(up="mlp.fc_in", down="mlp.fc_out", config="n_inner"),
    ),
    tiny={
        "gptj": {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_inner": 40, "n_positions": 64, "rotary_dim": 4}
    },
)
