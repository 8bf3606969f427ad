"""T5 and mT5: block 0 computes a position bias with one column per head, which every block shares."""

from ..table import Architecture, HeadSpec, NeuronSpec


def attention(path: str, name: str = "heads") -> HeadSpec:
    norm = path.rpartition(".")[0] + ".layer_norm"
    return HeadSpec(
        name=name,
        at=path,
        d="key_value_proj_dim",
        q=".q",
        k=".k",
        v=".v",
        out=".o",
        sync={"n_heads": "u", "inner_dim": "u*d"},
        follow="position_bias",
        shared=True,
        optional=name != "heads",
        private=(norm,),
    )


def network(path: str) -> NeuronSpec:
    """Return the network with `wi`, or with the two matrices of a gated one."""
    reads = {"up": f"{path}.wi?", "gate": f"{path}.wi_0?", "gated": f"{path}.wi_1?"}
    norm = path.rpartition(".")[0] + ".layer_norm"
    return NeuronSpec(**reads, down=f"{path}.wo", config="d_ff", optional=True, private=(norm,))


SIZES = {"d_kv": 8, "d_ff": 40, "num_decoder_layers": 3, "decoder_start_token_id": 0}

ARCHITECTURE = Architecture(
    models=("t5", "mt5"),
    layers=("encoder.block", "decoder.block"),
    masks={"decoder": "decoder_attention_mask"},
    specs=(
        attention("layer.0.SelfAttention"),
        attention("layer.1.EncDecAttention", "cross_heads"),
        network("layer.1.DenseReluDense"),
        network("layer.2.DenseReluDense"),
    ),
    counts={"encoder.block": "num_layers", "decoder.block": "num_decoder_layers"},
    inherited=("layer.0.SelfAttention.relative_attention_bias",),
    tiny={"t5": SIZES, "mt5": SIZES},
)
