"""GPT-2: q, k and v fused in one transposed matrix (Conv1D)."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("gpt2",),
    layers="h",
    specs=(
        HeadSpec(
            at="attn",
            d="head_dim",
            qkv=(".c_attn", "m ([q k v] u d)"),
            out=(".c_proj", "(u d) m"),
            sync={"num_heads": "u", "split_size": "u*d"},
            tail="c_proj resid_dropout",
        ),
        HeadSpec(
            name="cross_heads",
            at="crossattention",
            d="head_dim",
            q=(".q_attn", "m (u d)"),
            kv=(".c_attn", "m ([k v] u d)"),
            out=(".c_proj", "(u d) m"),
            sync={"num_heads": "u", "split_size": "u*d"},
            tail="c_proj resid_dropout",
            optional=True,
        ),
        NeuronSpec(up=("mlp.c_fc", "m u"), down=("mlp.c_proj", "u m"), config="n_inner"),
    ),
    tiny={"gpt2": {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_inner": 40, "n_positions": 64}},
)
