"""BART, mBART and Whisper: self- and cross-attention, and fc1 and fc2 in the block itself.

Their modules have the same names; BART's norms follow the sublayers and stay without them.
"""

from ..table import Architecture, HeadSpec, NeuronSpec

FIRST = "if not bart"
SEQ2SEQ = {
    "decoder_layers": 3,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36,
    "decoder_start_token_id": 2,
}

ARCHITECTURE = Architecture(
    models=("bart", "mbart", "whisper"),
    layers=("encoder.layers", "decoder.layers"),
    masks={"decoder": "decoder_attention_mask"},
    counts={"encoder.layers": "encoder_layers", "decoder.layers": "decoder_layers"},
    fixed={"use_weighted_layer_sum": "its classifier reads the hidden states of every layer"},
    specs=(
        HeadSpec(
            at="self_attn",
            out=".out_proj",
            sync={"num_heads": "u"},
            private=(f"self_attn_layer_norm {FIRST}",),
        ),
        HeadSpec(
            name="cross_heads",
            at="encoder_attn",
            out=".out_proj",
            sync={"num_heads": "u"},
            optional=True,
            private=(f"encoder_attn_layer_norm {FIRST}",),
        ),
        NeuronSpec(up="fc1", down="fc2", config="{stack}_ffn_dim", private=(f"final_layer_norm {FIRST}",)),
    ),
    tiny={
        "bart": {**SEQ2SEQ, "num_labels": 3},  # transformers saves no other number for it
        "mbart": SEQ2SEQ,
        "whisper": {
            **SEQ2SEQ,
            "num_mel_bins": 8,
            "max_source_positions": 12,
            "max_target_positions": 24,
            "begin_suppress_tokens": None,
        },
    },
)
