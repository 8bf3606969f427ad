"""OPT: a decoder of BART's layout."""

from ..table import Architecture, NeuronSpec
from .bart import attention

ARCHITECTURE = Architecture(
    models=("opt",),
    layers="decoder.layers",
    specs=(attention("self_attn"), NeuronSpec(up="fc1", down="fc2", config="ffn_dim")),
    tiny={"opt": {"ffn_dim": 40, "word_embed_proj_dim": 48}},
)
