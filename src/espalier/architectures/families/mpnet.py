"""MPNet: the encoder passes one position bias with a slice per head to every layer."""

from ..table import Architecture, NeuronSpec
from .bert import attention

ARCHITECTURE = Architecture(
    models=("mpnet",),
    layers="encoder.layer",
    specs=(
        attention(at="attention.attn", q=".q", k=".k", v=".v", out=".o", follow="position_bias"),
        NeuronSpec(up="intermediate.dense", down="output.dense", config="intermediate_size"),
    ),
    position_offset={"mpnet": "2"},
)
