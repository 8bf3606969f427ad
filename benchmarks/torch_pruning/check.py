"""What a tool removed, whether the rest still computes the same, and whether it can be loaded again."""

import tempfile
from pathlib import Path

from .models import HEADS, SIZES, answer, ending, tiny


def compare(pruned, family):
    """What was removed, and how far the pruned model is from the original with just that zeroed."""
    original, end = tiny(family), HEADS[family][-1]
    heads = []  # of each layer, [heads, head size]: which columns of the output projection are kept
    for before, after in zip(ending(original, end), ending(pruned, end)):
        kept = kept_columns(before, after)
        before.register_forward_pre_hook(lambda _, args, k=kept: (args[0] * k, *args[1:]))
        heads.append(kept.view(SIZES["num_attention_heads"], -1))
    return {
        "before": original.num_parameters(),
        "after": pruned.num_parameters(),
        "heads before": sum(len(kept) for kept in heads),
        "heads after": sum(int(kept.all(1).sum()) for kept in heads),
        "whole": all(bool((kept.all(1) | ~kept.any(1)).all()) for kept in heads),
        "difference": far(pruned, original),
    }


def reload(model, save, *loads):
    """`yes` if everything in `loads` gives back a model with the same output, or what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model"))
        try:
            save(model, path)
            apart = max(far(load(path).eval(), model) for load in loads)
        except Exception as error:
            return f"no: {first_line(error)}"
    return "yes" if apart == 0 else f"loads, but differs by {apart:.1e}"


def kept_columns(before, after):
    """[inputs]: which input columns of an output projection are still there, found by their values."""
    # GPT-2's Conv1D, which has an `nf`, is [inputs, outputs] already
    before, after = (m.weight if hasattr(m, "nf") else m.weight.t() for m in (before, after))
    return (after[:, None] == before).all(-1).any(0)  # [left, inputs] → [inputs]


def far(a, b):
    """The largest difference of two models' outputs."""
    return float((answer(a) - answer(b)).abs().max())


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])
