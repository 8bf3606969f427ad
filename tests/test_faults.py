"""Kills, torn writes and full disks at every change to the disk; for all verbs: `benchmarks/faults.py`."""

import json
import os
from pathlib import Path

import pytest
import torch
import toys
from benchmarks.changes import AVAILABLE, FAULTY, FULL, KILL, TORN, Change, run, unsynced

import espalier
from espalier.io.rows import Rows, read_rows
from espalier.testing.tiny import tiny

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="changes are traced on Linux and x86-64")
ROWS = [{"k": k, "text": "ä" * 20 * k} for k in range(4)]


def a_model(seed):
    model = tiny("bert", "AutoModelForSequenceClassification", num_hidden_layers=1)
    for parameter in model.parameters():
        parameter.data += seed
    espalier.cut(model, espalier.Mask({"encoder.layer.0/heads": torch.arange(6) != seed}))
    return model


def files(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())} if folder.is_dir() else {}


def test_a_save_is_old_or_new_whatever_happens(tmp_path):
    from benchmarks.faults import Matrix, Scenario

    old, new, tokenizer = a_model(1), a_model(2), toys.tokenizer()
    scenario = Scenario(
        "save",
        lambda place: espalier.save(old, place / "out", tokenizer=tokenizer),
        lambda place: espalier.save(new, place / "out", tokenizer=tokenizer),
    )
    matrix = Matrix(scenario, tmp_path / "work", tmp_path / "template")
    matrix.begin()
    assert len(matrix.changes) > 15
    found = {}
    for at in range(len(matrix.changes)):
        fault = (KILL, FULL, FAULTY, TORN)[at % 4]  # every change; the benchmark has every fault at each
        found[at, fault, matrix.changes[at]] = matrix.try_fault(at, fault)
    verdicts = {verdict for verdict, _ in found.values()}
    assert verdicts == {"old", "new"}, found


def test_a_saved_model_is_on_the_disk_before_it_is_in_its_place(tmp_path):
    model, tokenizer = a_model(1), toys.tokenizer()
    ended = run(lambda: espalier.save(model, tmp_path / "out", tokenizer=tokenizer), tmp_path)
    assert ended.end == "done", ended.message
    assert unsynced(ended.changes) == []


@pytest.mark.parametrize("fault", [KILL, TORN, FULL, FAULTY])
def test_rows_lose_at_most_the_last(tmp_path, fault):
    path = tmp_path / "run/rows.jsonl"

    def work():
        rows = Rows(path)
        for row in ROWS[len(rows.rows) :]:
            rows.add(row)

    path.parent.mkdir()
    changes = run(work, tmp_path).changes
    assert len(changes) >= 3 * len(ROWS)  # open, write, fsync
    for at in range(len(changes)):
        path.unlink(missing_ok=True)
        ended = run(work, tmp_path, at=at, fault=fault)
        assert ended.end in ("killed", "refused", "done"), ended.message
        assert read_rows(path) == ROWS[: len(read_rows(path))]
        work()
        assert read_rows(path) == ROWS


def test_changes_of_other_languages_are_seen(tmp_path):
    """safetensors writes in Rust, which no patched function of Python would see."""
    from safetensors.torch import save_file

    file = tmp_path / "a.safetensors"
    ended = run(lambda: save_file({"a": torch.ones(4)}, file), tmp_path)
    assert {"openat", "write"} <= {change.call for change in ended.changes}
    size = file.stat().st_size
    places = [i for i, change in enumerate(ended.changes) if change.call == "write"]
    file.unlink()
    assert run(lambda: save_file({"a": torch.ones(4)}, file), tmp_path, at=places[-1]).end == "killed"
    assert not file.exists() or file.stat().st_size <= size
    assert (
        run(lambda: save_file({"a": torch.ones(4)}, file), tmp_path, at=places[-1], fault=FULL).end == "bare"
    )


def test_what_is_not_synced_is_told():
    there, safe = Change("write", ".x.1/a.json"), Change("fsync", ".x.1/a.json")
    put = Change("rename", ".x.1", "x")
    assert unsynced([there, put]) == ["x/a.json"]
    assert unsynced([there, safe, put]) == []
    assert unsynced([there, safe, there, put]) == ["x/a.json"]
    assert unsynced([Change("write", "rows.jsonl")]) == ["rows.jsonl"]


def test_a_run_in_the_tracer_is_an_ordinary_one(tmp_path):
    def work():
        (tmp_path / "a").write_text(json.dumps(os.getpid()))

    ended = run(work, tmp_path)
    assert (ended.end, ended.message) == ("done", "")
    assert json.loads(Path(tmp_path / "a").read_text()) != os.getpid()
    assert [change.call for change in ended.changes] == ["openat", "write"]
