"""Table two: how long it takes to score the heads of a BERT-base and to cut half of them."""

import copy
import time

from .by_hand import forward
from .environment import log, run_case
from .models import bert_base, calibration

TIMEOUT = 1800  # seconds
REPEATS = 5  # in each process, for work of less than a second
FROZEN = "Taylor, weights it does not read frozen by us"
# (group, repeats in a process) -> rows: tool, label, function. The others are compared with the first row.
GROUPS = {
    ("score by gradients, cut", 1): [
        ("by hand", "gate gradients, slicing", "by_gradients"),
        ("espalier", "taylor, cut", "by_gradients"),
        ("Torch-Pruning", "Taylor", "by_gradients"),
        ("Torch-Pruning", FROZEN, "by_gradients_frozen"),
    ],
    ("score by magnitude, cut", REPEATS): [
        ("by hand", "squared weights, slicing", "by_magnitude"),
        ("espalier", "magnitude, cut", "by_magnitude"),
        ("Torch-Pruning", "magnitude", "by_magnitude"),
    ],
    ("cut alone", REPEATS): [
        ("by hand", "slicing", "every_other"),
        ("espalier", "cut", "every_other"),
    ],
    ("for scale", 1): [
        ("plain", "forward, no gradients", "forward"),
        ("plain", "forward and backward, all weights", "forward_and_backward"),
    ],
}
TITLE = "How long"
COLUMNS = ["", "measured", "seconds, best", "worst", "× first of group", "parameters left"]
NOTE = f"""\
BERT-base size, random weights, 64 sequences of 64 tokens in batches of 8; half of the 144 heads, chosen over
the whole model. Each row is a process of its own in every round, and each round goes through all rows; work
of less than a second is done {REPEATS} times in each process. Imports and building the model are not
counted; finding the heads, tracing, choosing and cutting are. *× first of group*: best over best of the
group's first row. The tools' scores are not the same quantity (by gradients: espalier one gate per head and
example, Torch-Pruning weight times gradient), and random weights cannot show which choice of heads is better:
only times are compared."""


def run(rounds):
    """Return the results by group; each round goes through all rows, so that all meet the same noise."""
    out = {group: [{"seconds": []} for _ in rows] for group, rows in GROUPS.items()}
    for turn in range(rounds):
        for (group, repeats), some in GROUPS.items():
            for found, (tool, label, work) in zip(out[group, repeats], some):
                log(f"round {turn + 1} of {rounds}, {tool}: {label}")
                new = run_case("timing", tool, work, str(repeats), timeout=TIMEOUT)
                seconds = found["seconds"] + new.get("seconds", [])
                found.update(new, seconds=seconds)
    return out


def measure(module, work, repeats):
    """Return the seconds of each repeat on a new copy of the model, and the parameters left."""
    model, batches = bert_base(), calibration()
    forward(model, batches[:1])  # the first pass of a process is slower
    seconds = []
    for _ in range(int(repeats)):
        pruned = copy.deepcopy(model)
        start = time.perf_counter()
        getattr(module, work)(pruned, batches)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "after": pruned.num_parameters()}


def rows(results):
    """Return the lines of the table."""
    out = []
    for (group, _), tool, label, found, times in compared(results):
        new = not any(row[0] == group for row in out)
        cells = [found.get("error"), "–", "–", "–"]
        if "error" not in found:
            best, worst = min(found["seconds"]), max(found["seconds"])
            cells = [f"{best:.3f}", f"{worst:.3f}", f"{times:.2f}", f"{found['after']:,}"]
        out.append([group if new else "", f"{tool}: {label}", *cells])
    return out


def sentences(results):
    """Return the ratios of the table in words."""
    return [
        f"{tool} ({label}) takes {times:.2f}× as long as the code by hand."
        for _, tool, label, found, times in compared(results)
        if tool in ("espalier", "Torch-Pruning") and "error" not in found and times == times  # nan
    ]


def compared(results):
    """Yield group, tool, label, result, and its best seconds over those of the group's first row."""
    for group, rows_found in results.items():
        best = [min(found["seconds"], default=float("nan")) for found in rows_found]
        for (tool, label, _), found, seconds in zip(GROUPS[group], rows_found, best):
            yield group, tool, label, found, seconds / best[0]
