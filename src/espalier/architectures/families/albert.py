"""ALBERT: a block serves many layers, so a unit that is cut here is cut in all of them."""

from ..table import Architecture, NeuronSpec
from .bert import attention

ARCHITECTURE = Architecture(
    models=("albert",),
    layers="encoder.albert_layer_groups.*.albert_layers",
    specs=(
        attention(at="attention", out=".dense", tail="dense output_dropout +hidden_states LayerNorm"),
        NeuronSpec(up="ffn", down="ffn_output", config="intermediate_size"),
    ),
    uses="num_hidden_layers/num_hidden_groups",
    fixed={"albert": "its layers share their blocks; fewer layers are another `num_hidden_layers`"},
    tiny={"albert": {"embedding_size": 16, "num_hidden_layers": 6, "num_hidden_groups": 3}},
)
