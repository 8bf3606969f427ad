"""DINOv2: ViT's attention, and a plain or a gated network."""

from ..table import Architecture, NeuronSpec
from .vit import HEADS, SIZES

PRIVATE = ("norm2", "+layer_scale2")

ARCHITECTURE = Architecture(
    models=("dinov2",),
    layers="encoder.layer",
    drops_tokens=("dinov2",),
    specs=(
        HEADS,
        NeuronSpec(up="mlp.fc1", down="mlp.fc2", optional=True, private=PRIVATE),
        NeuronSpec(
            up="mlp.up_proj",
            gate="mlp.gate_proj",
            down="mlp.down_proj",
            optional=True,
            private=PRIVATE,
        ),
    ),
    tiny={"dinov2": SIZES},
)
