"""Table two: how long it takes to score the heads of a BERT-base and to cut half of them."""

import copy
import time

from .by_hand import forward
from .environment import ask, say
from .models import bert_base, calibration

PATIENCE = 1800  # seconds
REPEATS = 5  # in each process, for work of less than a second
FROZEN = "Taylor, weights it does not read frozen by us"
# (group, repeats in a process) -> rows: who, what, the function that does it. A group's first row is what
# the others are held against.
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
COLUMNS = ["", "what", "seconds, best", "worst", "× first of group", "parameters left"]
NOTE = f"""\
BERT-base size, random weights, 64 sequences of 64 tokens in batches of 8; half of the 144 heads, chosen over
the whole model. Each row is a process of its own in every round, and each round goes through all rows; work
of less than a second is done {REPEATS} times in each process. Imports and building the model are not
counted; finding the heads, tracing, choosing and cutting are. *× first of group*: best over best of the
group's first row. The tools' scores are not the same quantity (by gradients: espalier one gate per head and
example, Torch-Pruning weight times gradient), and random weights cannot say which choice of heads is better:
this is about time only."""


def run(rounds):
    """Answers by group, with the seconds of all rounds; rounds go through all rows, so noise is shared."""
    out = {group: [{"seconds": []} for _ in rows] for group, rows in GROUPS.items()}
    for turn in range(rounds):
        for (group, repeats), some in GROUPS.items():
            for found, (who, what, work) in zip(out[group, repeats], some):
                say(f"round {turn + 1} of {rounds}, {who}: {what}")
                new = ask("timing", who, work, str(repeats), patience=PATIENCE)
                seconds = found["seconds"] + new.get("seconds", [])
                found.update(new, seconds=seconds)
    return out


def measure(does, work, repeats):
    """Seconds of each repeat on a fresh copy of the model, and the parameters left."""
    model, batches = bert_base(), calibration()
    forward(model, batches[:1])  # the first pass of a process is slower
    seconds = []
    for _ in range(int(repeats)):
        fresh = copy.deepcopy(model)
        start = time.perf_counter()
        getattr(does, work)(fresh, batches)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "after": fresh.num_parameters()}


def rows(results):
    out = []
    for (group, _), who, what, found, times in told(results):
        new = not any(row[0] == group for row in out)
        cells = [found.get("error"), "–", "–", "–"]
        if "error" not in found:
            best, worst = min(found["seconds"]), max(found["seconds"])
            cells = [f"{best:.3f}", f"{worst:.3f}", f"{times:.2f}", f"{found['after']:,}"]
        out.append([group if new else "", f"{who}: {what}", *cells])
    return out


def sentences(results):
    """What the table says, computed from it."""
    return [
        f"{who} ({what}) takes {times:.2f}× as long as the code by hand."
        for _, who, what, found, times in told(results)
        if who in ("espalier", "Torch-Pruning") and "error" not in found and times == times  # nan
    ]


def told(results):
    """Group, who, what, answer, and its best seconds over those of the group's first row."""
    for group, answers in results.items():
        best = [min(found["seconds"], default=float("nan")) for found in answers]
        for (who, what, _), found, seconds in zip(GROUPS[group], answers, best):
            yield group, who, what, found, seconds / best[0]
