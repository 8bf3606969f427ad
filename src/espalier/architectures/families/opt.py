"""OPT: a decoder of BART's layout."""

from ..table import Architecture, HeadSpec, NeuronSpec

FIRST = "if do_layer_norm_before"

ARCHITECTURE = Architecture(
    models=("opt",),
    layers="decoder.layers",
    specs=(
        HeadSpec(
            at="self_attn",
            out=".out_proj",
            sync={"num_heads": "u"},
            private=(f"self_attn_layer_norm {FIRST}",),
        ),
        NeuronSpec(up="fc1", down="fc2", config="ffn_dim", private=(f"final_layer_norm {FIRST}",)),
    ),
    tiny={"opt": {"ffn_dim": 40}},
)
