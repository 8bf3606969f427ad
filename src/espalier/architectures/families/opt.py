"""OPT: a decoder of BART's layout."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("opt",),
    layers="decoder.layers",
    specs=(
        HeadSpec(at="self_attn", out=".out_proj", sync={"num_heads": "u"}),
        NeuronSpec(up="fc1", down="fc2", config="ffn_dim"),
    ),
    tiny={"opt": {"ffn_dim": 40}},
)
