"""ViT and DeiT."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("vit", "deit"),
    layers="layers",
    specs=(
        HeadSpec(
            at="attention",
            d="head_dim",
            out=".o_proj",
            sync={"num_attention_heads": "u"},
            config={"num_attention_heads": "u", "head_dim": "d"},
        ),
        NeuronSpec(up="mlp.fc1", down="mlp.fc2", config="intermediate_size"),
    ),
    tiny={
        "vit": {"image_size": 16, "patch_size": 4, "encoder_stride": 4},
        "deit": {"image_size": 16, "patch_size": 4, "encoder_stride": 4},
    },
)
