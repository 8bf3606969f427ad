"""One process, two or four: the same rows, to the last bit. And what happens when one dies."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import toys
from test_training import in_two_processes

from espalier.cli import launching
from espalier.core import distributed
from espalier.experiment import compare, parse

WORDS = ["--by", "gnorm,taylor,entropy,gnorm:pooling=batch,random:2", "--threads", "1"]
SIZES = ["--calibrate", "30", "--validate", "40", "--test", "20", "--no-figures"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    toys.folder_with_model(folder / "model")
    toys.table_of(folder / "data.tsv")
    return folder


def command(place, output, *more):
    where = [str(place / "model"), "--task", str(place / "data.tsv"), "-o", str(output)]
    return ["espalier", "compare", *where, *WORDS, *SIZES, *more]


def run(*words, **more):
    start = [sys.executable, "-m"]
    return subprocess.run([*start, *words], capture_output=True, text=True, check=False, **more)


def rows(folder):
    """All but the times."""
    found = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    for row in found:
        assert set(row.pop("seconds")) == {"evaluating", "scoring"}
    return found


@pytest.fixture(scope="module")
def single(place):
    done = run(*command(place, place / "one"))
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def alone(place, single):
    return rows(place / "one")


@pytest.mark.parametrize("count", [2, 4])
def test_the_rows_do_not_depend_on_the_number_of_processes(place, single, alone, count):
    """Thirty examples are a few uneven batches, so with four some have less to do than others."""
    done = run(*command(place, place / f"of{count}", "--processes", str(count)))
    assert done.returncode == 0, done.stderr
    assert rows(place / f"of{count}") == alone
    assert done.stdout.count("random:2") == single.stdout.count("random:2") > 0  # the first speaks


def test_accelerate_launches_it_too(place, alone):
    launch = ["accelerate.commands.launch", "--num_processes", "2", "--cpu", "-m"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = run(*launch, *command(place, place / "launched"), env=env)
    assert done.returncode == 0, done.stderr
    assert rows(place / "launched") == alone


def test_a_death_is_told_and_the_rows_go_on(place, alone):
    words = command(place, place / "killed", "--processes", "2")
    starting = subprocess.Popen([sys.executable, "-m", *words], stderr=subprocess.PIPE, text=True)
    path = place / "killed" / "rows.jsonl"
    while not path.exists() or path.read_bytes().count(b"\n") < 4:
        assert starting.poll() is None, starting.stderr.read()
        time.sleep(0.01)
    os.kill(_child(starting.pid, "1"), signal.SIGKILL)
    _, said = starting.communicate(timeout=120)
    assert starting.returncode == 1
    assert "process 2 of 2 was killed by signal 9" in said
    assert "type the same command again to go on" in said
    assert "Traceback" not in said
    assert 4 <= len(rows(place / "killed")) < len(alone)
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert rows(place / "killed") == alone


def _child(parent, rank):
    """The process that was started with this rank."""
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


def with_one_group(folder):
    """Scored on what is measured, as one batch: of two processes one has nothing to score."""
    if distributed.is_launched():
        distributed.join()
    apart = toys.toy_bench(calibration=None, batch=1000)
    same = replace(apart, task=replace(apart.task, validation=apart.task.train))
    same = replace(same, validation=apart.calibration)
    compare(same, parse("gnorm:pooling=batch"), Path(folder), tested=False, keep=0.5)
    print(json.dumps(len(rows(Path(folder)))))


def test_who_scores_nothing_hears_what_the_others_heard(tmp_path):
    assert in_two_processes("test_processes", "with_one_group", tmp_path / "two") == 10
    with_one_group(tmp_path / "one")
    assert rows(tmp_path / "two") == rows(tmp_path / "one")


def test_a_signal_to_the_launcher_alone_is_answered(monkeypatch, capsys):
    def sleepers(words, processes, threads, logs):
        return [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])]

    monkeypatch.setattr(launching, "_started", sleepers)
    monkeypatch.setattr(launching, "PATIENCE", 0.1)
    # A program in the background may have been told to ignore Ctrl-C, so this is the other way to stop it.
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGTERM]).start()
    assert launching._run([], 1, 1) == 130
    assert "type the same again" in capsys.readouterr().err
