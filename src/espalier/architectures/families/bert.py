"""BERT and its descendants: separate q, k and v, a two-matrix feed-forward network."""

from ..table import Architecture, HeadSpec, NeuronSpec


def attention(path: str, name: str = "heads") -> HeadSpec:
    return HeadSpec(
        name=name,
        at=f"{path}.self",
        d="attention_head_size",
        q=".query",
        k=".key",
        v=".value",
        out=f"{path}.output.dense",
        sync={"num_attention_heads": "u", "all_head_size": "u*d"},
        optional=name != "heads",
    )


ARCHITECTURE = Architecture(
    models=("bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie", "esm", "roformer"),
    layers="encoder.layer",
    tokenwise_from="attention.output",
    specs=(
        attention("attention"),
        attention("crossattention", "cross_heads"),
        NeuronSpec(up="intermediate.dense", down="output.dense", config="intermediate_size"),
    ),
    position_offset=dict.fromkeys(("roberta", "xlm-roberta", "camembert", "esm"), "pad_token_id+1"),
    tiny={
        "electra": {"embedding_size": 16},
        "roformer": {"embedding_size": 16},
        "esm": {"mask_token_id": 3, "token_dropout": True, "position_embedding_type": "rotary"},
    },
    about={"esm": "its contact head reads every attention map, so predict_contacts needs all heads"},
)
