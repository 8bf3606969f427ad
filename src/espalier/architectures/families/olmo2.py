"""OLMo 2: Llama's layout, but q and k are normalised over all heads together."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("olmo2",),
    layers="layers",
    specs=(
        HeadSpec(
            at="self_attn",
            d="head_dim",
            g="num_key_value_groups",
            out=".o_proj",
            uncuttable="q_norm and k_norm take the mean over all heads of a layer, "
            "so removing one head would change the others",
        ),
        NeuronSpec(up="mlp.up_proj", gate="mlp.gate_proj", down="mlp.down_proj", config="intermediate_size"),
    ),
    tiny={"olmo2": {"num_key_value_heads": 3}},
)
