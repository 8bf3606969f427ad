"""DistilBERT."""

from ..table import Architecture, HeadSpec, NeuronSpec

ARCHITECTURE = Architecture(
    models=("distilbert",),
    layers="transformer.layer",
    drops_tokens=("distilbert",),
    specs=(
        HeadSpec(
            at="attention",
            d="attention_head_size",
            q=".q_lin",
            k=".k_lin",
            v=".v_lin",
            out=".out_lin",
            sync={"n_heads": "u"},
        ),
        NeuronSpec(up="ffn.lin1", down="ffn.lin2", config="hidden_dim"),
    ),
    tiny={"distilbert": {"hidden_dim": 40}},
)
