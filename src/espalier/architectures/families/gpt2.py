"""GPT-2: q, k and v fused in one transposed matrix (Conv1D)."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("gpt2",),
    layers="h",
    specs=(
        HeadSpec(
            at="attn",
            qkv=(".c_attn", "m ([q k v] u d)"),
            out=(".c_proj", "(u d) m"),
            sync={"num_heads": "u", "split_size": "u*d"},
            tail="c_proj resid_dropout",
            private=("ln_1",),
        ),
        HeadSpec(
            name="cross_heads",
            at="crossattention",
            q=(".q_attn", "m (u d)"),
            kv=(".c_attn", "m ([k v] u d)"),
            out=(".c_proj", "(u d) m"),
            sync={"num_heads": "u", "split_size": "u*d"},
            tail="c_proj resid_dropout",
            optional=True,
            private=("ln_cross_attn",),
        ),
        NeuronSpec(up=("mlp.c_fc", "m u"), down=("mlp.c_proj", "u m"), config="n_inner", private=("ln_2",)),
    ),
    fixed={"scale_attn_by_inverse_layer_idx": "its attention is scaled by the number of its block"},
    tiny={"gpt2": {"n_inner": 40}},
)
