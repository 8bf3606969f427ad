"""OPT: a decoder of BART's layout."""

from ..anatomy import Anatomy, neurons
from .bart import attention

ANATOMY = Anatomy(
    models=("opt",),
    layers="decoder.layers",
    parts=(attention("self_attn"), neurons(up="fc1", down="fc2", config="ffn_dim")),
    tiny={"opt": {"ffn_dim": 40, "word_embed_proj_dim": 48}},
)
