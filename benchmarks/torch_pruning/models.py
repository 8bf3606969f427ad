"""The models that both tools prune, and their outputs. Needs neither tool."""

import torch
import transformers

REMOVE = 0.5
# The ends of the names of the modules that make the heads of a family and, last, of the output projection.
BERT = [*(f"attention.self.{name}" for name in ("query", "key", "value")), "attention.output.dense"]
HEADS = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), BERT),
    "albert": [f"attention.{name}" for name in ("query", "key", "value", "dense")],
    "distilbert": [f"attention.{name}_lin" for name in ("q", "k", "v", "out")],
    "gpt2": ["attn.c_attn", "attn.c_proj"],
    "llama": [f"self_attn.{letter}_proj" for letter in "qkvo"],
    "vit": [f"attention.{letter}_proj" for letter in "qkvo"],
}
SIZES = {
    "vocab_size": 500,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 64,
}
MORE_SIZES = {
    "albert": {"embedding_size": 64},
    "distilbert": {"hidden_dim": 256},
    "gpt2": {"n_inner": 256, "bos_token_id": 1, "eos_token_id": 2},
    "llama": {"num_key_value_heads": 2},
    "vit": {"image_size": 32, "patch_size": 8},
}


def tiny(family):
    """Return a small random model, the same for both tools, with biases and norms that are not 0 and 1."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES | MORE_SIZES.get(family, {}))
    model = transformers.AutoModel.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def inputs(model):
    """Return the same random inputs every time: images or token numbers."""
    generator = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        return {"pixel_values": torch.randn(2, 3, size, size, generator=generator)}
    return {"input_ids": torch.randint(4, 500, (2, 16), generator=generator)}


def last_hidden_state(model):
    """Return [batch, tokens, width] for the same inputs every time."""
    with torch.no_grad():
        return model(**inputs(model)).last_hidden_state


def bert_base():
    """Return a classifier of BERT-base size with random weights."""
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig()).eval()


def calibration():
    """Return 64 sequences of 64 tokens in batches of 8, with labels."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1000, 30000, (8, 8, 64), generator=generator)
    labels = torch.randint(0, 2, (8, 8), generator=generator)
    return [{"input_ids": i, "labels": y} for i, y in zip(ids, labels)]


def ending(model, end):
    """Return the modules whose name ends like this, in forward order."""
    return [module for name, module in model.named_modules() if name.endswith(end)]
