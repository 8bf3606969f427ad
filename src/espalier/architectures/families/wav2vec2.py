"""wav2vec 2.0."""

from ..table import Architecture, HeadSpec, NeuronSpec

FIRST = "if do_stable_layer_norm"

ARCHITECTURE = Architecture(
    models=("wav2vec2",),
    layers="encoder.layers",
    specs=(
        HeadSpec(at="attention", out=".out_proj", sync={"num_heads": "u"}, private=(f"layer_norm {FIRST}",)),
        NeuronSpec(
            up="feed_forward.intermediate_dense",
            down="feed_forward.output_dense",
            config="intermediate_size",
            private=(f"final_layer_norm {FIRST}",),
        ),
    ),
    fixed={"use_weighted_layer_sum": "its classifier reads the hidden states of every layer"},
    tiny={
        "wav2vec2": {
            "conv_dim": [8, 8],
            "conv_stride": [4, 4],
            "conv_kernel": [8, 8],
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "mask_time_prob": 0.0,
        }
    },
)
