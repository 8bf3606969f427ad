"""ALBERT: a block serves many layers, so a unit that is cut here is cut in all of them."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("albert",),
    layers="encoder.albert_layer_groups.*.albert_layers",
    specs=(
        HeadSpec(
            at="attention",
            d="attention_head_size",
            q=".query",
            k=".key",
            v=".value",
            out=".dense",
            sync={"num_attention_heads": "u", "all_head_size": "u*d"},
            tail="dense output_dropout +hidden_states LayerNorm",
        ),
        NeuronSpec(up="ffn", down="ffn_output", config="intermediate_size"),
    ),
    uses="num_hidden_layers/num_hidden_groups",
    tiny={"albert": {"embedding_size": 16, "num_hidden_layers": 6, "num_hidden_groups": 3}},
)
