"""Table one: of which models each tool can remove half of the heads, and whether the output is right."""

from .environment import log, run_case
from .models import HEADS

TIMEOUT = 60  # seconds
# What else was tried with the other tool: the family, then the help it was given.
HELPED = ["gpt2, cache off", "gpt2, cache off, qkv unpacked by hand", "llama, cache off, eager"]
TITLE = "Which models"
COLUMNS = ["family", "tool", "removed", "parameters", "difference", "`from_pretrained`"]
NOTE = """\
Tiny random models (2 layers, 4 heads, width 128; Llama: 2 key-value heads), half of each layer's heads by
magnitude. *difference*: largest between the pruned model's output and the original's with those heads
zeroed before the output projection, found by comparing weights (for espalier also with `masked`, the larger
counts). *`from_pretrained`*: whether `AutoModel.from_pretrained` gives a model with the same output; for
espalier after `espalier.save`, with espalier imported, and only if `espalier.load` does so too; for
Torch-Pruning after `save_pretrained`. Torch-Pruning's own format is a pickle of the module, which was not
tried. It is given the names of q, k and v, their heads, and everything else as ignored."""


def run():
    """Return (family and help, tool, result) for every row."""
    out = []
    for family in HEADS:
        log(f"half of the heads of {family}")
        helped = [case for case in HELPED if case.startswith(f"{family}, ")]
        for tool, cases in (("espalier", [family]), ("Torch-Pruning", [family, *helped])):
            out += [(case, tool, run_case("families", tool, case, timeout=TIMEOUT)) for case in cases]
    return out


def rows(results):
    """Return the lines of the table."""
    return [[case, tool, *cells(found)] for case, tool, found in results]


def cells(found):
    """Return the cells of one result: removed, parameters, difference, `from_pretrained`."""
    if "error" in found:
        return [f"no: {found['error']}", "–", "–", "–"]
    heads = f"{found['heads before']} → {found['heads after']}"
    sizes = f"{found['before']:,} → {found['after']:,}"
    if not removed(found):
        seen = "no, nothing, and no error" if found["entire heads"] else f"no entire heads, {heads}"
        return [seen, sizes, "–", "–"]
    difference = f"{found['difference']:.1e}" if found["difference"] else "0"
    return [f"yes, {heads}", sizes, difference, found["from_pretrained"]]


def sentences(results):
    """Return the counts of the table in words."""
    out = []
    for tool in ("espalier", "Torch-Pruning"):
        plain = [found for case, by, found in results if by == tool and case in HEADS]
        done = list(filter(removed, plain))
        out.append(
            f"{tool} removes half of the heads of {len(done)} of {len(plain)} families, exactly of "
            f"{sum(map(exact, plain))}; `from_pretrained` reads "
            f"{sum(found['from_pretrained'] == 'yes' for found in done)} of the {len(done)} results."
        )
    helped = [case for case, _, found in results if case in HELPED and exact(found)]
    out.append(f"Torch-Pruning, helped further, also does: {'; '.join(helped) or 'none more'}.")
    return out


def removed(found):
    """Return whether entire heads were removed."""
    return "error" not in found and found["after"] < found["before"] and found["entire heads"]


def exact(found):
    """Return whether heads were removed and the output is right."""
    return removed(found) and found["difference"] < 1e-5
