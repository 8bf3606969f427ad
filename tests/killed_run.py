"""A run that is killed again and again: python killed_run.py FOLDER KILLS. Prints where the kills fell.

Forks from one warm process, so that a kill costs milliseconds and not the import of torch.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(1)
import toys  # noqa: E402

from espalier.experiment.method import parse_methods  # noqa: E402
from espalier.experiment.runner import run_comparison  # noqa: E402

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
METHODS = parse_methods("gnorm,gnorm:static,entropy:reverse,taylor,random:4:every=3", "heads")


def run(name):
    run_comparison(toys.toy_session(), METHODS, folder / name, remove=[1.0], all_scores=True)


def rows(name):
    path = folder / name / "rows.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


start = time.perf_counter()
run("alone")
pause = (time.perf_counter() - start) / rows("alone")
draw, done, moments = random.Random(7), 0, []
while done < kills:
    before = rows("killed")
    child = os.fork()
    if not child:
        run("killed")
        os._exit(0)
    # A few rows later, and then somewhere within the making of the next.
    wanted = before + draw.randint(0, 5)
    while rows("killed") < wanted:
        time.sleep(0.002)
    time.sleep(pause * draw.random())
    ended, _ = os.waitpid(child, os.WNOHANG)
    if ended:
        sys.exit(f"the run ended after {done} kills: it is too short to be killed {kills} times")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    done += 1
    moments.append(rows("killed"))
run("killed")
print(json.dumps([done, moments]))
