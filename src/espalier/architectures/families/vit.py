"""ViT and DeiT."""

from ..table import Architecture, HeadSpec, NeuronSpec

HEADS = HeadSpec(
    at="attention",
    out=".o_proj",
    sync={"num_attention_heads": "u"},
    config={"num_attention_heads": "u", "head_dim": "d"},
    private=("layernorm_before", "norm1", "+layer_scale1"),
)
SIZES = {"image_size": 16, "patch_size": 4}

ARCHITECTURE = Architecture(
    models=("vit", "deit"),
    layers="layers",
    drops_tokens=("vit", "deit"),
    specs=(
        HEADS,
        NeuronSpec(up="mlp.fc1", down="mlp.fc2", config="intermediate_size", private=("layernorm_after",)),
    ),
    tiny={model_type: {**SIZES, "encoder_stride": 4} for model_type in ("vit", "deit")},
)
