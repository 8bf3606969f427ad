"""T5 and mT5: block 0 computes a position bias with one column per head, and every block shares it."""

from ..table import Architecture, Part, heads, neurons


def attention(path: str, **more: object) -> Part:
    return heads(
        at=path,
        d="key_value_proj_dim",
        q=".q",
        k=".k",
        v=".v",
        out=".o",
        sync={"n_heads": "u", "inner_dim": "u*d"},
        follow="position_bias",
        shared=True,
        **more,  # type: ignore[arg-type]
    )


def network(path: str) -> Part:
    """`wi`, or the two of a gated one."""
    return neurons(
        up=f"{path}.wi?",
        gate=f"{path}.wi_0?",
        gated=f"{path}.wi_1?",
        down=f"{path}.wo",
        config="d_ff",
        optional=True,
    )


SIZES = {
    "d_model": 48,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 3,
    "num_decoder_layers": 3,
    "num_heads": 6,
}

ARCHITECTURE = Architecture(
    models=("t5", "mt5"),
    layers=("encoder.block", "decoder.block"),
    parts=(
        attention("layer.0.SelfAttention"),
        attention("layer.1.EncDecAttention", name="cross_heads", optional=True),
        network("layer.1.DenseReluDense"),
        network("layer.2.DenseReluDense"),
    ),
    tiny={
        "t5": {**SIZES, "decoder_start_token_id": 0},
        "mt5": {**SIZES, "decoder_start_token_id": 0},
    },
)
