"""One process, two or four: the same rows, to the last bit. And the end of a group of which one died."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import toys
from test_training import in_two_processes

import espalier
from espalier.core import distributed
from espalier.core.errors import UnsupportedError
from espalier.experiment.method import parse_methods
from espalier.experiment.runner import run_comparison
from espalier.io.rows import read_rows

METHODS = "gnorm,taylor,entropy,gnorm:pooling=batch,random:2"
QUICK = ["--calibration", "30", "--validation", "40", "--test", "20"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(place, output, *more, processes=1):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    where = [str(place / "model"), "--task", str(place / "data.tsv"), "-o", str(output)]
    words = ["-m", "espalier", "compare", *where, "--methods", METHODS, *QUICK, "--set", "figures=false"]
    return [sys.executable, *(launch if processes > 1 else []), *words, *more]


def run(words):
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=ENV)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def rows(folder):
    """All but the times."""
    found = read_rows(folder / "rows.jsonl")
    for row in found:
        assert set(row.pop("seconds")) <= {"evaluating", "scoring"}
    return found


@pytest.fixture(scope="module")
def alone(place):
    return run(command(place, place / "one")).stdout, rows(place / "one")


@pytest.mark.parametrize("count", [2, 4])
def test_the_rows_do_not_depend_on_the_number_of_processes(place, alone, count):
    """Thirty examples are a few uneven batches, so with four some have less to do than others."""
    done = run(command(place, place / f"of{count}", processes=count))
    assert rows(place / f"of{count}") == alone[1]
    assert done.stdout.replace(f"of{count}", "one") == alone[0]  # only the first process prints


def test_accelerate_launches_it_too(place, alone):
    launch = ["-m", "accelerate.commands.launch", "--num_processes", "2", "--cpu", "-m", "espalier"]
    words = command(place, place / "launched")
    run([sys.executable, *launch, *words[3:]])
    assert rows(place / "launched") == alone[1]


def test_a_killed_worker_ends_the_group_and_the_rows_resume(place, alone):
    words = command(place, place / "killed", processes=2)
    group = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENV)
    path = place / "killed" / "rows.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < 4:
        assert group.poll() is None, group.stderr.read()
        time.sleep(0.01)
    os.kill(_child(group.pid, "1"), signal.SIGKILL)
    group.communicate(timeout=120)
    assert group.returncode
    assert 4 <= len(rows(place / "killed")) < len(alone[1])
    run(words)
    assert rows(place / "killed") == alone[1]


def _child(parent, rank):
    """Return the process that was started with this rank."""
    for folder in os.listdir("/proc"):
        try:
            with open(f"/proc/{folder}/stat") as file:
                own = file.read().rpartition(")")[2].split()[1] == str(parent)
            with open(f"/proc/{folder}/environ", "rb") as file:
                if own and f"RANK={rank}".encode() in file.read().split(b"\0"):
                    return int(folder)
        except (OSError, IndexError):
            continue
    raise AssertionError("no such child")


WORKER = """
import sys, time
from pathlib import Path
from espalier.core import distributed

distributed.join()
Path(sys.argv[1], str(distributed.rank())).touch()
time.sleep(300)
"""


def test_workers_end_soon_after_their_parent_was_killed(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [sys.executable, *launch, str(tmp_path / "worker.py"), str(tmp_path)]
    parent = subprocess.Popen(words, stderr=subprocess.DEVNULL, env=ENV)
    while not all((tmp_path / rank).exists() for rank in "01"):
        assert parent.poll() is None
        time.sleep(0.05)
    workers = [_child(parent.pid, rank) for rank in "01"]
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 10
    while (left := [pid for pid in workers if _is_running(pid)]) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def _is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_two_processes_prune_one_model(place, alone, tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "espalier", "prune", place / "model", "--task", place / "data.tsv", "--method", "gnorm"]
    found = run([*launch, *words, "--remove", "0.5", "-o", tmp_path / "s", *QUICK, "--json"]).stdout
    assert json.loads(found)["after"]["heads"] == 9
    first = [row["order"] for row in alone[1] if row["method"] == "gnorm" and row["split"] == "validation"]
    removed = {tuple(unit) for order in first[:9] for unit in order}
    keep = espalier.plan_of(espalier.load(tmp_path / "s")).keep
    assert not removed & {(i, head) for i, heads in enumerate(keep.values()) for head in heads}


def test_weights_need_one_process_and_several_need_a_folder(place, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    given = (place / "model", place / "data.tsv")
    for verb, options in (
        (espalier.compare, {"target": "weights", "folder": "x"}),
        (espalier.compare, {}),
        (espalier.prune, {"target": "weights", "remove": 0.5, "folder": "x"}),
        (espalier.prune, {"remove": 0.5}),
    ):
        with pytest.raises(UnsupportedError):
            verb(*given, **options)


def with_one_group(folder):
    """Scored on what is measured, as one batch: of two processes one has nothing to score."""
    if distributed.is_launched():
        distributed.join()
    apart = toys.toy_session(calibration=None, calibration_batch_size=1000)
    task = replace(apart.task, validation=apart.task.train)
    same = replace(apart, task=task, validation=apart.calibration)
    methods = parse_methods("gnorm:pooling=batch", "heads")
    run_comparison(same, methods, Path(folder), remove=[0.5], test=False)
    print(json.dumps(len(rows(Path(folder)))))


def test_a_process_that_scores_nothing_has_the_predictions_of_the_others(tmp_path):
    assert in_two_processes("test_processes", "with_one_group", tmp_path / "two") == 10
    with_one_group(tmp_path / "one")
    assert rows(tmp_path / "two") == rows(tmp_path / "one")
