"""DINOv2: ViT's attention, and a plain or a gated network."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("dinov2",),
    layers="encoder.layer",
    specs=(
        HeadSpec(
            at="attention",
            d="head_dim",
            out=".o_proj",
            sync={"num_attention_heads": "u"},
            config={"num_attention_heads": "u", "head_dim": "d"},
        ),
        NeuronSpec(up="mlp.fc1", down="mlp.fc2", optional=True),
        NeuronSpec(up="mlp.up_proj", gate="mlp.gate_proj", down="mlp.down_proj", optional=True),
    ),
    tiny={"dinov2": {"image_size": 16, "patch_size": 4}},
)
