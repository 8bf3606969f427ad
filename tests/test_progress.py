"""Progress: counts, one line on a terminal, and messages that are said once."""

import io
import logging
import re

import pytest
import toys
from rich.console import Console

import espalier
from espalier.core.progress import Progress, count_calls
from espalier.core.progress_bar import progress_bar
from espalier.core.terminal import by_template, log, logged_once, muted

QUICK = dict(calibration=8, validation=40, test=40, max_length=32)
LONG = "random:3 trial 1 one-shot, 16.7 % removed: accuracy 0.825 on validation"


def lines(width, *reports):
    """Return what a terminal of some width shows after each report."""
    out, ends = io.StringIO(), []
    screen = Console(file=out, width=width, force_terminal=True, color_system=None)
    with progress_bar(screen) as update:
        for now in reports:
            update(now)
            start = out.tell()
            screen.print("mark")  # draws the line again below it
            text = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]|\r", "", out.getvalue()[start:])
            ends.append(text.partition("mark\n")[2])
    return ends


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_line_has_room_for_count_and_time(width):
    (line,) = lines(width, Progress("comparing", 112, 145, LONG))
    assert len(line) <= width
    assert "\n" not in line
    assert line.startswith("random:3")
    assert "…" in line
    assert "112/145" in line
    assert re.search(r"\d:\d\d|-:--", line)


def test_what_cannot_be_counted_has_no_count():
    (line,) = lines(80, Progress("loading a model"))
    assert line.startswith("loading a model ")
    assert "/" not in line


def test_calls_are_counted_before_each_step():
    seen = []
    report = count_calls(seen.append, "evaluating", 2)
    report(7)
    report(3)
    assert seen == [Progress("evaluating", 0, 2), Progress("evaluating", 1, 2)]


def test_messages_are_logged_once(caplog):
    seen = set()
    with caplog.at_level(logging.INFO, "espalier"):
        for number in (1, 1, 2):
            with logged_once(seen):
                log.info("number %d", number)
        for number in (1, 2):
            with logged_once(seen, by_template):
                log.info("another %d", number)
        with muted():
            log.warning("nothing")
        log.info("number %d", 1)
    assert [r.getMessage() for r in caplog.records] == ["number 1", "number 2", "another 1", "number 1"]


def test_measure_says_once_how_a_task_was_made(place, caplog):
    models = [str(toys.folder_with_model(place / name)) for name in ("one", "two")]
    how = dict(task=str(place / "data.tsv"), validation=40, test=40, max_length=32, rounds=1)
    seen = []
    with caplog.at_level(logging.INFO, "espalier"):
        espalier.measure(models, against=str(place / "model"), on_progress=seen.append, **how)
    assert sum("split by seed" in r.getMessage() for r in caplog.records) == 1
    stages = [now.stage for now in seen if now.stage.startswith("evaluating") and now.total]
    assert set(stages) == {f"evaluating {name} on test data" for name in ("one", "two", "model")}


def test_evaluate_counts_batches(place):
    seen = []
    where = [str(place / "model"), str(place / "data.tsv")]
    espalier.evaluate(*where, validation=40, test=40, max_length=32, on_progress=seen.append)
    for split in ("validation", "test"):
        counts = [(now.done, now.total) for now in seen if now.stage == f"evaluating on {split} data"]
        assert counts == [(i, len(counts)) for i in range(len(counts))] != []


def test_export_says_what_it_does(place, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is an extra: pip install '.[onnx]'")
    seen, how = [], dict(task=str(place / "data.tsv"), **QUICK)
    espalier.export(str(place / "model"), tmp_path / "out", to="onnx", on_progress=seen.append, **how)
    stages = list(dict.fromkeys(now.stage for now in seen))
    evaluated = [f"evaluating {what} on test data" for what in ("torch", "the exported model")]
    assert stages[-3:] == ["exporting", *evaluated]
    assert all(now.total for now in seen if now.stage in evaluated)
