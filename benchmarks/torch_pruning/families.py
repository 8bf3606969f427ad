"""Table one: of which models each tool can remove half of the heads, and whether the rest is right."""

from .environment import ask, say
from .models import HEADS

PATIENCE = 60  # seconds
# What else was tried with the other tool: the family, then how it was helped.
HELPED = ["gpt2, cache off", "gpt2, cache off, qkv unpacked by hand", "llama, cache off, eager"]
TITLE = "Which models"
COLUMNS = ["family", "tool", "removed", "parameters", "difference", "`from_pretrained`"]
NOTE = """\
Tiny random models (2 layers, 4 heads, width 128; Llama: 2 key-value heads), half of each layer's heads by
magnitude. *difference*: largest between the pruned model's output and the original's with those heads
zeroed before the output projection, found by comparing weights (for espalier also with `masked`, the larger
counts). *`from_pretrained`*: whether `AutoModel.from_pretrained` gives a model with the same output; for
espalier after `espalier.save`, with espalier imported, and only if `espalier.load` does so too; for
Torch-Pruning after `save_pretrained`. Torch-Pruning's own way is a pickle of the module, which was not
tried. It is given the names of q, k and v, their heads, and everything else as ignored."""


def run():
    """(family and help, tool, answer) for every row."""
    out = []
    for family in HEADS:
        say(f"half of the heads of {family}")
        helped = [what for what in HELPED if what.startswith(f"{family}, ")]
        for tool, whats in (("espalier", [family]), ("Torch-Pruning", [family, *helped])):
            out += [(what, tool, ask("families", tool, what, patience=PATIENCE)) for what in whats]
    return out


def rows(results):
    return [[what, tool, *cells(found)] for what, tool, found in results]


def cells(found):
    if "error" in found:
        return [f"no: {found['error']}", "–", "–", "–"]
    heads = f"{found['heads before']} → {found['heads after']}"
    sizes = f"{found['before']:,} → {found['after']:,}"
    if not removed(found):
        how = "no, nothing, and no error" if found["whole"] else f"no whole heads, {heads}"
        return [how, sizes, "–", "–"]
    difference = f"{found['difference']:.1e}" if found["difference"] else "0"
    return [f"yes, {heads}", sizes, difference, found["from_pretrained"]]


def sentences(results):
    """What the table says, counted from it."""
    out = []
    for tool in ("espalier", "Torch-Pruning"):
        plain = [found for what, by, found in results if by == tool and what in HEADS]
        done = list(filter(removed, plain))
        out.append(
            f"{tool} removes half of the heads of {len(done)} of {len(plain)} families, exactly of "
            f"{sum(map(exact, plain))}; `from_pretrained` reads "
            f"{sum(found['from_pretrained'] == 'yes' for found in done)} of the {len(done)} results."
        )
    helped = [what for what, _, found in results if what in HELPED and exact(found)]
    out.append(f"Torch-Pruning, helped further, also does: {'; '.join(helped) or 'none more'}.")
    return out


def removed(found):
    return "error" not in found and found["after"] < found["before"] and found["whole"]


def exact(found):
    return removed(found) and found["difference"] < 1e-5
