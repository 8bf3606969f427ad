"""Phi 1 and 2."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("phi",),
    layers="layers",
    specs=(
        HeadSpec(at="self_attn", g="num_key_value_groups", out=".dense"),
        NeuronSpec(up="mlp.fc1", down="mlp.fc2", config="intermediate_size"),
    ),
    tiny={"phi": {"num_key_value_heads": 3}},
)
