"""What a tool removed, whether the output is right, and whether the model can be loaded again."""

import tempfile
from pathlib import Path

from .models import HEADS, SIZES, ending, last_hidden_state, tiny


def compare(pruned, family):
    """Return what was removed, and the difference to the original with exactly that set to zero."""
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
        "entire heads": all(bool((kept.all(1) | ~kept.any(1)).all()) for kept in heads),
        "difference": largest_difference(pruned, original),
    }


def reload(model, save, *loads):
    """Return `yes` if everything in `loads` gives a model with the same output, or else what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model"))
        try:
            save(model, path)
            difference = max(largest_difference(load(path).eval(), model) for load in loads)
        except Exception as error:
            return f"no: {first_line(error)}"
    return "yes" if difference == 0 else f"loads, but differs by {difference:.1e}"


def kept_columns(before, after):
    """Return which input columns of an output projection are kept, [inputs], found by their values."""
    # GPT-2's Conv1D, which has an `nf`, is [inputs, outputs] already
    before, after = (m.weight if hasattr(m, "nf") else m.weight.t() for m in (before, after))
    return (after[:, None] == before).all(-1).any(0)  # [left, inputs] → [inputs]


def largest_difference(a, b):
    """Return the largest difference between the outputs of two models."""
    return float((last_hidden_state(a) - last_hidden_state(b)).abs().max())


def first_line(error):
    """Return the type of an error and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])
