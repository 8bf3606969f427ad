"""Trackers: what a training logs, where, and that it changes nothing."""

import pytest
from accelerate import tracking
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_training import PER_EPOCH, bert_without_dropout, run, same, stopping_at

import espalier
from espalier import criteria
from espalier.core.errors import DependencyError, InvalidValueError, UnknownNameError
from espalier.training import Gradual
from espalier.training.trackers import parse_trackers


class Memory(tracking.GeneralTracker):
    """A tracker as a service would be: it has a project and no folder."""

    name = "memory"
    requires_logging_directory = False
    runs = None

    def __init__(self, project, **more):
        super().__init__(_blank=True)
        self.about, self.rows, self.finished = {"project": project, **more}, [], False

    def start(self):
        self.runs.append(self)

    def store_init_configuration(self, values):
        self.settings = values

    def log(self, values, step=None):
        self.rows.append((step, values))

    def finish(self):
        self.finished = True

    tracker = None


@pytest.fixture
def memory(monkeypatch):
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "memory", Memory)
    monkeypatch.setattr(Memory, "runs", [])
    return Memory


def curve(folder, name):
    found = EventAccumulator(str(folder)).Reload()
    return {event.step: event.value for event in found.Scalars(name)}


def gradual():
    return Gradual(criteria.load("magnitude"), 0.6, until=0.5)


def test_tensorboard_gets_every_step_and_a_resumed_training_no_step_twice(tmp_path):
    alone, model = bert_without_dropout(), bert_without_dropout()
    want = run(alone, callback=gradual(), evaluate=lambda _: {"validation accuracy": 0.5})
    how = dict(save_every=4, track="tensorboard", evaluate=lambda _: {"validation accuracy": 0.5})
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path / "m", callback=gradual(), on_progress=stopping_at(6), **how)
    model = bert_without_dropout()
    run(model, tmp_path / "m", callback=gradual(), **how)
    assert same(model, alone)
    logs, steps = tmp_path / "m" / "logs", list(range(1, 2 * PER_EPOCH + 1))
    assert list(curve(logs, "loss")) == list(curve(logs, "lr")) == steps
    assert list(curve(logs, "loss").values()) == pytest.approx([row["loss"] for row in want["loss"]])
    assert curve(logs, "removed")[PER_EPOCH] == pytest.approx(0.6)
    assert curve(logs, "epoch/validation accuracy") == {PER_EPOCH: 0.5, 2 * PER_EPOCH: 0.5}


def test_a_service_gets_settings_a_project_and_an_end(memory):
    run(bert_without_dropout(), track="memory:mine", epochs=1)
    (one,) = memory.runs
    assert one.about == {"project": "mine", "name": "training"}
    assert one.settings["batch_size"] == 8
    assert [step for step, values in one.rows if "loss" in values] == list(range(1, PER_EPOCH + 1))
    assert one.finished


def test_a_failed_training_ends_its_trackers(memory):
    with pytest.raises(KeyboardInterrupt):
        run(bert_without_dropout(), track="memory", on_progress=stopping_at(2))
    assert memory.runs[0].finished


@pytest.mark.parametrize(
    ("track", "error"),
    [
        ("tensorbord", UnknownNameError),
        ("tensorboard", InvalidValueError),  # no folder
        ("tensorboard:logs,comet_ml", DependencyError),
    ],
)
def test_wrong_trackers_are_refused_before_anything_is_read(track, error):
    with pytest.raises(error):
        espalier.train("no-such-model", "no-such-task", track=track)


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(tracking, "_available_trackers", [])
    with pytest.raises(DependencyError) as found:
        parse_trackers("tensorboard:logs", None)
    assert found.value.extra == "track"
    with pytest.raises(DependencyError) as found:
        parse_trackers("wandb", None)
    assert found.value.package == "wandb"
    assert "pip install wandb" in str(found.value)
