"""GPT-J."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("gptj",),
    layers="h",
    specs=(
        HeadSpec(
            at="attn", out=".out_proj", sync={"num_attention_heads": "u"}, tail="out_proj resid_dropout"
        ),
        NeuronSpec(up="mlp.fc_in", down="mlp.fc_out", config="n_inner"),
    ),
    tiny={"gptj": {"n_inner": 40, "rotary_dim": 4}},
)
