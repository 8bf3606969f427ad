"""From a dense model in torch to a cut model in int8: what the cut, the runtime and int8 each bring.

    python benchmarks/ship.py MODEL TASK [--work FOLDER] [--macs 0.5] [--rounds 20] [--name ship]

One thread. The cut model and its exports are kept in the work folder and are not made again. Everything is
timed in one run, interleaved; results/NAME.json has every number, results/NAME.md the tables. Accuracy is of
test data, which neither cutting nor quantising sees.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path

import torch

import espalier
from espalier.io.files import read_json, write_json
from espalier.io.paths import EXPORT_RECORD, is_exported

RESULTS = Path(__file__).parent / "results"
EXPORTS = {  # name -> how it is exported
    "onnx": {"to": "onnx"},
    "onnx-int8": {"to": "onnx", "int8": True},
    "onnx-int8-static": {"to": "onnx", "int8": True, "ranges": "static"},
    "openvino": {"to": "openvino"},
    "openvino-int8": {"to": "openvino", "int8": True},
}
ENOUGH = 0.99  # of the dense accuracy


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("model")
    ask.add_argument("task")
    ask.add_argument("--work", type=Path, default=Path("ship-work"))
    ask.add_argument("--macs", type=float, default=0.5)
    ask.add_argument("--calibration", type=int, default=256)
    ask.add_argument("--rounds", type=int, default=20)
    ask.add_argument("--name", default="ship")
    given = ask.parse_args()
    torch.set_num_threads(1)
    small = given.work / "small"
    if not (small / "config.json").is_file():
        how = {"macs": given.macs, "folder": small, "calibration": given.calibration}
        print(espalier.prune(given.model, given.task, **how), flush=True)
    for name, how in EXPORTS.items():
        if not is_exported(given.work / name):
            more = {"calibration": 256} if "int8" in how else {}
            print(espalier.export(small, given.work / name, task=given.task, **how, **more), flush=True)
    models = [small, *(given.work / name for name in EXPORTS)]
    shapes = {"batch_size": [1, 8], "max_length": [32, 128], "rounds": given.rounds}
    found = espalier.measure(models, given.model, memory=True, **shapes)
    print(found, flush=True)
    worth = {Path(given.model).name: espalier.evaluate(given.model, given.task)["test"]}
    records = {name: read_json(given.work / name / EXPORT_RECORD) for name in EXPORTS}
    worth |= {"small": records["onnx"]["torch"]}
    worth |= {name: record["exported"] for name, record in records.items()}
    for row in found["models"]:
        row["test"] = worth[row["model"]]
    facts = {"dense": Path(given.model).name, "task": Path(given.task).name, "macs": given.macs}
    facts |= {
        "load": os.getloadavg()[0],
        "processor": _processor(),
        "torch_version": torch.__version__,
        **found.to_dict(),
    }
    write_json(RESULTS / f"{given.name}.json", facts)
    (RESULTS / f"{given.name}.md").write_text(page(facts), encoding="utf-8")


def page(facts: dict) -> str:
    """Write the tables: accuracy and size, then every shape with its factors."""
    rows = facts["models"]
    dense = rows[len({row["model"] for row in rows}) - 1]["model"]
    at = {(row["model"], row["batch_size"], row["max_length"]): row for row in rows}
    names = list(dict.fromkeys(row["model"] for row in rows))
    shapes = list(dict.fromkeys((row["batch_size"], row["max_length"]) for row in rows))
    test = {name: at[name, *shapes[0]]["test"] for name in names}
    best = test[dense][test[dense]["metric"]]
    about = (
        f"{facts['processor']}, {facts['threads']} thread, torch {facts['torch_version']}; median of "
        f"{facts['rounds']} interleaved passes of random tokens. Accuracy on {test[dense]['n']} test "
        f"examples with 95 % intervals. The load of the machine was {facts['load']:.1f}: with other programs "
        "running, times are longer than on an idle one. Peak memory is that of a process of its own with "
        "its libraries, batch "
        f"{shapes[-1][0]}, {shapes[-1][1]} tokens. `small` is the cut and repaired model in torch; the "
        "others are its exports."
    )
    lines = [
        f"# {dense} on {facts['task']}, dense in torch and with {facts['macs']:g} of the MACs in int8",
        "",
        about,
        "",
        "| model | accuracy, % | of dense | MiB | peak MiB | "
        + " | ".join(f"{b} × {n}" for b, n in shapes)
        + " |",
        "|---|---|---|---|---|" + "---|" * len(shapes),
    ]
    for name in [dense, *(one for one in names if one != dense)]:
        row, one = at[name, *shapes[0]], test[name]
        value = one[one["metric"]]
        speeds = [f"{1e3 * at[name, *s]['median']:.2f} ms ({at[name, *s]['speedup']:.2f}×)" for s in shapes]
        lines.append(
            f"| {name}, {row['engine']} {row['precision']} | {100 * value:.2f} [{100 * one['low']:.2f}, "
            f"{100 * one['high']:.2f}] | {100 * value / best:.2f} % | {row['bytes'] / 2**20:.1f} | "
            f"{row['peak_bytes'] / 2**20:.0f} | " + " | ".join(speeds) + " |"
        )
    lines += ["", "Each factor beside the product (batch × tokens):", ""]
    lines += ["| | " + " | ".join(f"{b} × {n}" for b, n in shapes) + " |", "|---|" + "---|" * len(shapes)]
    for runtime in ("onnx", "openvino"):
        steps = [dense, "small", runtime, f"{runtime}-int8"]
        for label, a, b in zip(("cut", f"{runtime} for torch", "int8"), steps, steps[1:]):
            ratios = [at[a, *s]["median"] / at[b, *s]["median"] for s in shapes]
            lines.append(f"| {label} | " + " | ".join(f"{ratio:.2f}×" for ratio in ratios) + " |")
        total = [f"**{at[steps[-1], *s]['speedup']:.2f}×**" for s in shapes]
        lines.append(f"| **{runtime} int8, all three** | " + " | ".join(total) + " |")
    good = [n for n in names if n != dense and test[n][test[n]["metric"]] >= ENOUGH * best]
    fast = [n for n in good if all(at[n, *s]["speedup"] >= 3 for s in shapes)]
    said = f"At least 3× in every shape at {100 * ENOUGH:.0f} % or more of the dense accuracy: "
    lines += ["", said + (", ".join(fast) or "none") + "."]
    return "\n".join(lines) + "\n"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor()
    name = next((x.partition(":")[2].strip() for x in text.splitlines() if x.startswith("model name")), "")
    return name + (", VNNI" if "vnni" in text else "")


if __name__ == "__main__":
    main()
