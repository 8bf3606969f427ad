"""Comparisons of single weights: exact zeros, three phases, and the same rows after an interruption."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys

import espalier
from espalier import compensate, criteria, masked, remove_lowest, save, sites, zero
from espalier.analysis.curves import BASE, GRADUAL, ONE_SHOT, RECOVERED
from espalier.analysis.reader import read_run
from espalier.core.errors import ConflictError, InvalidValueError
from espalier.experiment.method import parse_methods
from espalier.experiment.recovery import Recovery
from espalier.experiment.runner import run_comparison
from espalier.experiment.session import Session
from espalier.io.files import read_json
from espalier.io.rows import read_rows
from espalier.reports import Report
from espalier.storage.size import file_sizes

METHODS = "magnitude,magnitude:scope=layer,wanda,movement"
LEVELS = [0.5, 0.75]
RECOVERY = Recovery(epochs=1, examples=32, batch_size=16, lr=1e-3, schedule="linear")


def session_of(**options):
    return toys.toy_session(target="weights", **options)


def study(session, methods, remove, folder, recovery=None, tolerance=1.0, **options):
    found = parse_methods(methods, "weights", trained=recovery is not None, also=session.also)
    run_comparison(session, found, folder, remove=remove, recovery=recovery, tolerance=tolerance, **options)
    return read_rows(folder / "rows.jsonl")


def of(rows, label, phase=ONE_SHOT, split="validation"):
    return [r for r in rows if (r["method"], r["phase"], r["split"]) == (label, phase, split)]


def timeless(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, session = tmp_path_factory.mktemp("study") / "run", session_of()
    before = {name: t.clone() for name, t in session.model.state_dict().items()}
    rows = study(session, METHODS, LEVELS, folder, RECOVERY)
    after = session.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not session.model.training
    return session, folder, rows


@pytest.fixture
def copied(finished, tmp_path):
    for name in ("run.json", "rows.jsonl"):
        (tmp_path / name).write_bytes((finished[1] / name).read_bytes())
    return tmp_path


def test_every_phase_has_exactly_its_zeros(finished):
    session, _, rows = finished
    for label in METHODS.split(",")[:2]:
        for phase in (ONE_SHOT, RECOVERED, GRADUAL):
            own = of(rows, label, phase)
            assert [r["removed"] for r in own] == LEVELS
            want = [session.units - round((1 - x) * session.units) for x in LEVELS]
            assert [r["cost"]["zeros"] for r in own] == want
    assert not of(rows, "movement") + of(rows, "movement", RECOVERED)
    gradual = [r["cost"]["zeros"] / session.units for r in of(rows, "movement", GRADUAL)]
    assert gradual == pytest.approx(LEVELS)


def test_a_row_describes_the_masked_model(finished):
    session, _, rows = finished
    scores = criteria.load("magnitude")(session.model, session.sites)
    for label, scope in (("magnitude", "global"), ("magnitude:scope=layer", "layer")):
        with masked(session.model, remove_lowest(scores, 0.75, scope=scope)):
            found = session.predict(session.model, "validation").values
        row = of(rows, label)[1]
        assert row["predictions"] == "".join(str(int(x)) for x in found)
        assert row["metrics"]["accuracy"] == np.mean(found == session.truth("validation"))


def test_recovery_changes_the_weights_and_the_dense_model_is_trained_too(finished):
    losses = {(r["method"], r["phase"], r["removed"]): r["metrics"]["loss"] for r in finished[2]}
    assert losses["magnitude", ONE_SHOT, 0.5] != losses["magnitude", RECOVERED, 0.5]
    assert losses[BASE, ONE_SHOT, 0.0] != losses[BASE, RECOVERED, 0.0]


def test_trained_models_are_tested_and_of_one_shot_only_the_chosen(finished):
    _, folder, rows = finished
    assert read_run(folder).curve("wanda").within(1.0) == 0.75
    assert [r["removed"] for r in of(rows, "wanda", split="test")] == [0.75]
    assert [r["removed"] for r in of(rows, "wanda", RECOVERED, "test")] == LEVELS
    assert [r["removed"] for r in of(rows, "movement", GRADUAL, "test")] == LEVELS


def test_the_file_is_as_large_as_the_row_says(finished, tmp_path):
    session, folder, rows = finished
    mask = remove_lowest(criteria.load("magnitude")(session.model, session.sites), 0.75)
    model = zero(deepcopy(session.model), mask)
    dense, sparse = file_sizes(model).values()
    save(model, tmp_path / "m", sparse=True)
    assert of(rows, "magnitude")[1]["cost"]["bytes"] == {"dense": dense, "sparse": sparse}
    raw = (tmp_path / "m" / "sparse.safetensors").read_bytes()
    assert len(raw) - 8 - int.from_bytes(raw[:8], "little") == sparse
    found = read_run(folder)
    base = found.cost((BASE, ONE_SHOT), 0.0)
    ratios = found.cost(("magnitude", ONE_SHOT), 0.75).compression(base)
    assert ratios["matrices"] == pytest.approx(4, rel=1e-3)
    assert 1 < ratios["file"] < ratios["model"] < 4


# ------------------------------------------------------------------------------------------ resumed


@pytest.mark.parametrize("lines", [1, 5, 15])
def test_an_interrupted_study_resumes_to_the_same_rows(copied, finished, lines):
    whole = (copied / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (copied / "rows.jsonl").write_bytes(b"".join(whole[:lines]) + whole[lines][:9])
    assert timeless(study(session_of(), METHODS, LEVELS, copied, RECOVERY)) == timeless(finished[2])


def test_nothing_is_computed_for_a_finished_study(copied, monkeypatch):
    before = (copied / "rows.jsonl").read_bytes()
    monkeypatch.setattr(Session, "predict", None)
    study(session_of(), METHODS, LEVELS, copied, RECOVERY)
    assert (copied / "rows.jsonl").read_bytes() == before


def test_scores_are_computed_once_for_all_levels(tmp_path, monkeypatch):
    real, load, calls = criteria.load("fisher"), criteria.load, []

    def counting(*args, **options):
        calls.append(1)
        return real(*args, **options)

    vars(counting).update(vars(real))
    monkeypatch.setattr(criteria, "load", lambda name: counting if name == "fisher" else load(name))
    study(session_of(), "fisher", [0.2, 0.4, 0.6], tmp_path)
    assert len(calls) == 1


def test_progress_of_a_resumed_study(copied, finished):
    seen = []
    rows = study(session_of(), "magnitude,fisher", [*LEVELS, 0.8], copied, RECOVERY, on_progress=seen.append)
    assert len(seen) == len(rows) - len(finished[2])
    assert [now.done for now in seen] == sorted(now.done for now in seen)
    # base, base recovered; then one-shot rows, the tested one, and two rows of each training
    assert {now.total for now in seen} == {2 + 2 + 2 * (3 + 1 + 2 * 3 + 2 * 3)}
    assert seen[-1].done == seen[-1].total


@pytest.mark.parametrize(
    ("change", "differ"),
    [
        ({"epochs": 2}, "epochs 1, now 2"),
        ({"examples": 16}, "examples 32, now 16"),
        ({"schedule": "cubic"}, "schedule linear, now cubic"),
        ({"mask_interval": 7}, "mask_interval not set, now 7"),
    ],
)
def test_another_training_is_refused(copied, change, differ):
    before = [(copied / name).read_bytes() for name in ("rows.jsonl", "run.json")]
    for methods in ("magnitude", "movement"):
        with pytest.raises(ConflictError) as error:
            study(session_of(), methods, [0.9], copied, replace(RECOVERY, **change))
        assert error.value.differences == differ
    assert [(copied / name).read_bytes() for name in ("rows.jsonl", "run.json")] == before


def test_recovery_alone_follows_no_schedule_and_leaves_it_recorded(copied):
    plain = replace(RECOVERY, schedule=None)
    for recovery in (plain, None):
        study(session_of(), "magnitude", LEVELS, copied, recovery)
        assert read_json(copied / "run.json")["training"]["schedule"] == "linear"
    with pytest.raises(ConflictError) as error:  # movement follows the default, cubic
        study(session_of(), "movement", LEVELS, copied, plain)
    assert error.value.differences == "schedule linear, now cubic"


def test_a_study_without_trained_rows_may_train_otherwise(tmp_path):
    def stop(now):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(session_of(), "magnitude", [0.5], tmp_path, RECOVERY, on_progress=stop)
    study(session_of(), "magnitude", [0.5], tmp_path, replace(RECOVERY, examples=16, schedule=None))
    assert read_json(tmp_path / "run.json")["training"]["examples"] == 16
    with pytest.raises(ConflictError) as error:
        study(session_of(), "magnitude", [0.5], tmp_path, RECOVERY)
    assert error.value.differences == "examples 16, now 32"


# ------------------------------------------------------------------------------------------ methods


def test_sparsegpt_repairs_layers_but_not_rows(tmp_path):
    session, plain = session_of(), session_of()
    rows = study(session, "sparsegpt,sparsegpt:scope=row", LEVELS, tmp_path / "run")
    for i, level in enumerate(LEVELS):
        model = deepcopy(plain.model)
        compensate(model, sites(model, "weights"), plain.calibration, level)
        want = plain.metrics(plain.predict(model, "validation"), "validation")["loss"]
        row, other = of(rows, "sparsegpt")[i], of(rows, "sparsegpt:scope=row")[i]
        assert row["metrics"]["loss"] == pytest.approx(want)
        assert row["cost"]["zeros"] == sum(s.units - round((1 - level) * s.units) for s in session.sites)
        assert other["metrics"]["loss"] != row["metrics"]["loss"]
        assert ("repairing" in row["seconds"], "repairing" in other["seconds"]) == (True, False)
    settings = read_json(tmp_path / "run" / "run.json")["settings"]
    assert [one.get("repaired") for one in settings.values()] == [True, None]


def test_two_of_four_beside_other_scopes(tmp_path):
    session = session_of()
    rows = study(session, "wanda:scope=2:4,magnitude:reverse", [0.5], tmp_path)
    (row,) = of(rows, "wanda:scope=2:4")
    scores = criteria.load("wanda")(session.model, session.sites, session.calibration)
    mask = remove_lowest(scores, 0.5, scope="2:4")
    assert row["cost"]["zeros"] == sum(int((~m).sum()) for m in mask.values())
    with masked(session.model, mask):
        want = session.predict(session.model, "validation").losses.mean()
    assert row["metrics"]["loss"] == pytest.approx(float(want), rel=1e-6)
    scores = criteria.load("magnitude")(session.model, session.sites)
    with masked(session.model, remove_lowest(espalier.Scores({n: -v for n, v in scores.items()}), 0.5)):
        want = session.predict(session.model, "validation").losses.mean()
    assert of(rows, "magnitude:reverse")[0]["metrics"]["loss"] == pytest.approx(float(want), rel=1e-6)


def test_random_trials_of_weights(tmp_path):
    rows = [r for r in study(session_of(), "random:2", [0.5], tmp_path) if r["method"] == "random:2"]
    losses = {r["trial"]: r["metrics"]["loss"] for r in rows if r["split"] == "validation"}
    assert set(losses) == {0, 1}
    assert losses[0] != losses[1]
    assert {r["seed"] for r in rows} == {0, 1}


def test_what_is_pruned_with_the_blocks_is_counted(finished, tmp_path):
    session = session_of(also=("embeddings", "norms"))
    rows = study(session, "magnitude,movement", [0.5], tmp_path, RECOVERY)
    assert session.units > finished[0].units
    rows = [r for r in rows if r["removed"]]
    assert {r["phase"] for r in rows} == {ONE_SHOT, RECOVERED, GRADUAL}
    zeros = session.units - round(0.5 * session.units)
    assert {(r["cost"]["weights"], r["cost"]["zeros"]) for r in rows} == {(session.units, zeros)}
    assert read_run(tmp_path).also == ("embeddings", "norms")
    with pytest.raises(ConflictError):
        study(session_of(), "magnitude", [0.5], tmp_path)


def test_criteria_that_read_inputs_leave_embeddings_and_norms():
    for label in ("wanda", "sparsegpt"):
        with pytest.raises(InvalidValueError) as error:
            parse_methods(label, "weights", also=("embeddings",))
        assert error.value.parameter == "target"
        assert parse_methods(label, "weights", also=("head",))
    usual = [one.label for one in parse_methods(None, "weights", also=("norms",))]
    assert "magnitude" in usual
    assert "wanda" not in usual


def test_nothing_kept_in_the_matrices_is_a_row_like_any_other(tmp_path):
    (row,) = of(study(session_of(), "magnitude:scope=row", [0.99], tmp_path), "magnitude:scope=row")
    assert row["cost"]["zeros"] == row["cost"]["weights"]
    found = read_run(tmp_path)
    ratios = found.cost(("magnitude:scope=row", ONE_SHOT), 0.99).compression(
        found.cost(("base", ONE_SHOT), 0)
    )
    assert ratios["matrices"] is None
    assert ratios["model"] > 1
    assert Report([found], 1.0).write(tmp_path)


# ------------------------------------------------------------------------------------------ sparse models


def sparse_session(scope, remove):
    session = session_of()
    scores = criteria.load("magnitude")(session.model, session.sites)
    zero(session.model, remove_lowest(scores, remove, scope=scope))
    return session


def test_a_sparse_model_has_exactly_the_zeros_of_each_level(tmp_path):
    """A criterion may score a zero above other weights: it is removed all the same."""
    methods = "magnitude,magnitude:scope=layer,magnitude:scope=row,fisher,random"
    session = sparse_session("row", 0.5)
    zeros = {s.name: s.linear.weight.detach() == 0 for s in session.sites}
    rows = [r for r in study(session, methods, LEVELS, tmp_path) if r["method"] != BASE]
    assert len({r["method"] for r in rows}) == 5
    for row in rows:
        want = session.units - round((1 - row["removed"]) * session.units)
        assert row["cost"]["zeros"] == want, row["method"]
    assert all(torch.equal(zeros[s.name], s.linear.weight == 0) for s in session.sites)


def test_a_level_below_the_zeros_of_the_model_is_refused_before_work(tmp_path, monkeypatch):
    monkeypatch.setattr(Session, "predict", None)
    with pytest.raises(InvalidValueError) as error:
        study(sparse_session("global", 0.5), "magnitude", [0.4, 0.6], tmp_path / "run")
    assert error.value.parameter == "remove"
    # In total it could be reached, but one matrix has more zeros than that.
    session = sparse_session("layer", 0.5)
    with torch.no_grad():
        session.sites[0].linear.weight.zero_()
    for scope in ("layer", "row"):
        with pytest.raises(InvalidValueError):
            study(session, f"magnitude:scope={scope}", [0.6], tmp_path / "run")
    assert not (tmp_path / "run").exists()
