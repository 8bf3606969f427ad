"""CLIP: a text and a vision tower of one layout, together or each on its own."""

from ..table import Architecture, HeadSpec, NeuronSpec

TOWER = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 40,
    "projection_dim": 16,
}
TEXT = {**TOWER, "vocab_size": 64, "max_position_embeddings": 64, "eos_token_id": 2}
VISION = {**TOWER, "num_attention_heads": 4, "image_size": 16, "patch_size": 4}

ARCHITECTURE = Architecture(
    models=("clip", "clip_text_model", "clip_vision_model"),
    layers=("text_model.encoder.layers", "vision_model.encoder.layers", "encoder.layers"),
    masks={"vision_model": ""},
    causal=("clip_text_model",),
    specs=(
        HeadSpec(at="self_attn", out=".out_proj", sync={"num_heads": "u"}, private=("layer_norm1",)),
        NeuronSpec(up="mlp.fc1", down="mlp.fc2", private=("layer_norm2",)),
    ),
    counts={
        "text_model.encoder.layers": "text_config.num_hidden_layers",
        "vision_model.encoder.layers": "vision_config.num_hidden_layers",
    },
    tiny={
        "clip": {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16},
        "clip_text_model": TEXT,
        "clip_vision_model": VISION,
    },
)
