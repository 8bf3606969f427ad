"""Half of the heads with Torch-Pruning, in its own environment: of a tiny model, and of BERT-base.

These settings are the only ones that remove heads in 1.6.1: `pruning_ratio` must not be 0 or heads are kept
too, `prune_head_dims` must be off or heads become narrower as well, and all other layers are ignored.
"""

from torch import nn
from torch_pruning.pruner import BasePruner
from torch_pruning.pruner.importance import GroupMagnitudeImportance, GroupTaylorImportance
from transformers import AutoModel

from .by_hand import forward_and_backward
from .check import compare, reload
from .models import BERT, HEADS, REMOVE, ending, inputs, tiny
from .unpacked import pack, unpack


def half(case):
    """Remove half of each layer's heads; `case` is a family and, after commas, the help for the tool."""
    family, *helped = case.split(", ")
    pruned, reads = tiny(family), HEADS[family][:-1]
    pruned.config.use_cache = "cache off" not in helped
    if "eager" in helped:  # what its own rule for grouped queries was written for
        pruned.set_attn_implementation("eager")
    if "qkv unpacked by hand" in helped:
        reads = unpack(pruned)
    options = {"output_transform": lambda out: out.last_hidden_state.sum()}
    pruner(pruned, reads, inputs(pruned), GroupMagnitudeImportance(), **options).step()
    if "qkv unpacked by hand" in helped:
        pack(pruned)
    saved = reload(pruned, lambda m, path: m.save_pretrained(path), AutoModel.from_pretrained)
    return compare(pruned, family) | {"from_pretrained": saved}


def by_gradients(model, batches, frozen=False):
    """Score by its Taylor importance and prune; `frozen` leaves out gradients that it does not read."""
    taylor = pruner_of_bert(model, batches, GroupTaylorImportance())
    if frozen:  # it reads the gradients of these only
        read = {id(module.weight) for end in BERT for module in ending(model, end)}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in read)
    forward_and_backward(model, batches)
    taylor.step()


def by_gradients_frozen(model, batches):
    """Score by gradients of the weights that it reads only."""
    by_gradients(model, batches, frozen=True)


def by_magnitude(model, batches):
    """Score by its magnitude importance and prune."""
    pruner_of_bert(model, batches, GroupMagnitudeImportance()).step()


def pruner_of_bert(model, batches, importance):
    """Return a pruner that compares the heads of all layers."""
    example = {"input_ids": batches[0]["input_ids"][:1, :8]}
    return pruner(model, BERT[:-1], example, importance, global_pruning=True)


def pruner(model, reads, example, importance, **options):
    """Return a pruner: a user has to name q, k and v, their heads, and all other layers as ignored."""
    grouped = getattr(model.config, "num_key_value_heads", None)
    heads = {
        module: grouped if grouped and i > 0 else model.config.num_attention_heads
        for i, end in enumerate(reads)
        for module in ending(model, end)
    }
    others = [m for m in model.modules() if not list(m.children()) and m not in heads]
    return BasePruner(
        model,
        example,
        importance,
        ignored_layers=others,
        num_heads=heads,
        prune_num_heads=True,
        prune_head_dims=False,
        head_pruning_ratio=REMOVE,
        pruning_ratio=REMOVE,
        in_channel_groups={},  # the defaults are shared between pruners
        out_channel_groups={},
        root_module_types=[nn.Linear],
        **options,
    )
