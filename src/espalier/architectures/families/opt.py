"""OPT: a decoder of BART's layout."""

from ..table import Architecture, neurons
from .bart import attention

ARCHITECTURE = Architecture(
    models=("opt",),
    layers="decoder.layers",
    parts=(attention("self_attn"), neurons(up="fc1", down="fc2", config="ffn_dim")),
    tiny={"opt": {"ffn_dim": 40, "word_embed_proj_dim": 48}},
)
