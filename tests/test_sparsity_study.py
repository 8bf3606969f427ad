"""The sparsity study: exact zeros, rows that survive a kill, two rules, and a report from files alone."""

import json
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from commands import refused
from espalier.experiment.study import study
from espalier.experiment.study_method import levels_of, parse
from espalier.experiment.study_training import Training

from espalier import (
    EspalierError,
    compensate,
    criteria,
    lowest,
    masked,
    per_layer,
    save,
    sites,
    zero,
)
from espalier.analysis import read_run
from espalier.analysis.curves import BASE, GRADUAL, RECOVERED
from espalier.analysis.curves import ONE_SHOT as AT_ONCE
from espalier.io.rows import read_rows
from espalier.reports import Report
from espalier.selection.scopes import chooser
from espalier.storage.size import file_sizes

BY = "magnitude,magnitude:scope=layer,wanda,movement"
LEVELS = [0.5, 0.75]
TRAINING = Training(epochs=1, examples=32, batch=16, rate=1e-3, schedule="linear")


def of(rows, label, way, split="validation"):
    return [r for r in rows if (r["strategy"], r["way"], r["split"]) == (label, way, split)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "run"
    bench = toys.toy_bench(units="weights")
    before = {name: t.clone() for name, t in bench.model.state_dict().items()}
    study(bench, parse(BY), LEVELS, folder, training=TRAINING, within=1.0)
    after = bench.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)  # left as it was found
    return bench, folder, read_rows(folder / "rows.jsonl")


def test_every_way_has_exactly_its_zeros(finished):
    bench, _, rows = finished
    weights = sum(site.units for site in bench.sites)
    for label in BY.split(",")[:2]:
        for way in (AT_ONCE, RECOVERED, GRADUAL):
            own = of(rows, label, way)
            assert [r["level"] for r in own] == LEVELS
            assert [r["zeros"] for r in own] == [weights - round((1 - x) * weights) for x in LEVELS]
    assert not of(rows, "movement", AT_ONCE)
    assert not of(rows, "movement", RECOVERED)
    assert [r["zeros"] / weights for r in of(rows, "movement", GRADUAL)] == pytest.approx(LEVELS)


def test_a_row_says_what_the_masked_model_answers(finished):
    bench, _, rows = finished
    scores = criteria.load("magnitude")(bench.model, bench.sites)
    for label, choose in (("magnitude", lowest), ("magnitude:scope=layer", per_layer)):
        with masked(bench.model, choose(scores, 0.25)):
            guess = bench.evaluate(bench.model, "validation").predictions
        row = of(rows, label, AT_ONCE)[1]
        assert row["predictions"] == "".join(str(int(x)) for x in guess)
        assert row["metrics"]["accuracy"] == np.mean(guess == bench.truth("validation"))


def test_recovery_changes_the_weights_and_the_dense_model_is_trained_too(finished):
    _, _, rows = finished
    losses = {
        (r["strategy"], r["way"], r["level"]): r["metrics"]["loss"]
        for r in rows
        if r["split"] == "validation"
    }
    assert losses["magnitude", AT_ONCE, 0.5] != losses["magnitude", RECOVERED, 0.5]
    assert losses[BASE, AT_ONCE, 0.0] != losses[BASE, RECOVERED, 0.0]


def test_trained_models_are_tested_and_at_once_only_the_chosen(finished):
    _, folder, rows = finished
    chosen = read_run(folder).chosen("wanda", tolerance=1.0)
    assert chosen == 0.75  # within a hundred points everything is
    assert [r["level"] for r in of(rows, "wanda", AT_ONCE, "test")] == [0.75]
    assert [r["level"] for r in of(rows, "wanda", RECOVERED, "test")] == LEVELS


def test_the_file_is_as_large_as_said(finished, tmp_path):
    bench, _, rows = finished
    mask = lowest(criteria.load("magnitude")(bench.model, bench.sites), 0.25)
    model = zero(deepcopy(bench.model), mask)
    dense, sparse = file_sizes(model).values()
    save(model, tmp_path / "m", sparse=True)
    row = of(rows, "magnitude", AT_ONCE)[1]
    assert row["bytes"] == {"dense": dense, "sparse": sparse}
    raw = (tmp_path / "m" / "sparse.safetensors").read_bytes()
    assert len(raw) - 8 - int.from_bytes(raw[:8], "little") == sparse
    assert row["compression"]["matrices"] == pytest.approx(4, rel=1e-3)
    assert 1 < row["compression"]["file"] < row["compression"]["model"] < 4


@pytest.mark.parametrize("lines", [1, 5, 15])
def test_a_killed_study_goes_on_to_the_same_rows(finished, tmp_path, lines):
    _, folder, rows = finished
    whole = (folder / "rows.jsonl").read_bytes().splitlines(keepends=True)
    half = tmp_path / "half"
    half.mkdir()
    (half / "run.json").write_bytes((folder / "run.json").read_bytes())
    (half / "rows.jsonl").write_bytes(b"".join(whole[:lines]) + whole[lines][:9])
    study(toys.toy_bench(units="weights"), parse(BY), LEVELS, half, training=TRAINING, within=1.0)

    def bare(found):
        return [{k: v for k, v in row.items() if k != "seconds"} for row in found]

    assert bare(read_rows(half / "rows.jsonl")) == bare(rows)


def test_nothing_is_computed_for_a_finished_study(finished, monkeypatch):
    _, folder, _ = finished
    bench, before = toys.toy_bench(units="weights"), (folder / "rows.jsonl").read_bytes()

    def never(*_, **__):
        raise AssertionError("measured again")

    monkeypatch.setattr(type(bench), "evaluate", never)
    study(bench, parse(BY), LEVELS, folder, training=TRAINING, within=1.0)
    assert (folder / "rows.jsonl").read_bytes() == before


def test_scores_are_computed_once_for_all_levels(tmp_path, monkeypatch):
    asked = []
    real = criteria.load("fisher")

    def counting(*args, **options):
        asked.append(1)
        return real(*args, **options)

    counting.targets, counting.scope, counting.rescored = real.targets, real.scope, False
    counting.inputs = False
    bench, who = toys.toy_bench(units="weights"), parse("fisher")
    monkeypatch.setattr(criteria, "load", lambda name: counting)
    study(bench, who, [0.2, 0.4, 0.6], tmp_path / "run", within=0.0)
    assert len(asked) <= 2  # once for the levels, once more if the rule chose one to be tested


def test_another_training_in_the_same_folder_is_refused(finished):
    _, folder, _ = finished
    other = Training(epochs=2, examples=32, batch=16, rate=1e-3)
    with pytest.raises(EspalierError, match=r"another training \(epochs 1, now 2"):
        study(toys.toy_bench(units="weights"), parse("magnitude"), [0.5], folder, training=other)


@pytest.fixture
def copied(finished, tmp_path):
    _, folder, _ = finished
    for name in ("run.json", "rows.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": "cubic"}, "schedule linear, now cubic"),
        ({"refresh": 7}, "refresh not said, now 7"),
    ],
)
def test_a_curve_follows_one_schedule(copied, change, said):
    """More levels by another schedule would join the line of the first."""
    bench, before = toys.toy_bench(units="weights"), (copied / "rows.jsonl").read_bytes()
    for by in ("magnitude", "movement"):
        with pytest.raises(EspalierError, match=rf"another training \({said}\).*another folder"):
            study(bench, parse(by), [0.9], copied, training=replace(TRAINING, **change))
    assert (copied / "rows.jsonl").read_bytes() == before
    told = json.loads((copied / "run.json").read_text())["training"]
    assert (told["schedule"], told["refresh"]) == ("linear", None)


def test_recovery_alone_does_not_mind_a_schedule_and_leaves_it_recorded(copied):
    plain = replace(TRAINING, schedule=None)
    for training in (plain, None):
        study(toys.toy_bench(units="weights"), parse("magnitude"), LEVELS, copied, training=training)
        told = json.loads((copied / "run.json").read_text())["training"]
        assert told["schedule"] == "linear"
    with pytest.raises(EspalierError, match="schedule linear, now cubic"):  # what movement follows
        study(toys.toy_bench(units="weights"), parse("movement"), LEVELS, copied, training=plain)


def test_a_folder_from_before_schedules_were_recorded_goes_on(copied):
    """Its rows say the schedule and no refresh; its run.json neither."""
    head = json.loads((copied / "run.json").read_text())
    for name in ("schedule", "refresh"):
        head["training"].pop(name)
    (copied / "run.json").write_text(json.dumps(head))
    rows = [{k: v for k, v in r.items() if k != "refresh"} for r in read_rows(copied / "rows.jsonl")]
    (copied / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    details = read_run(copied).details["movement", GRADUAL].values()
    assert {one["schedule"] for one in details} == {"linear"}
    study(toys.toy_bench(units="weights"), parse(BY), LEVELS, copied, training=TRAINING, within=1.0)
    assert len(read_rows(copied / "rows.jsonl")) == len(rows)
    other = replace(TRAINING, schedule="cubic")
    with pytest.raises(EspalierError, match="schedule linear, now cubic"):
        study(toys.toy_bench(units="weights"), parse(BY), LEVELS, copied, training=other)


def test_sparsegpt_repairs_in_a_study(tmp_path):
    bench, want = toys.toy_bench(units="weights"), toys.toy_bench(units="weights")
    study(bench, parse("sparsegpt,sparsegpt:scope=row"), LEVELS, tmp_path / "run", within=0.0)
    rows = read_rows(tmp_path / "run" / "rows.jsonl")
    for i, level in enumerate(LEVELS):
        model = deepcopy(want.model)
        compensate(model, sites(model, "weights"), want.calibration, 1 - level)
        row = of(rows, "sparsegpt", AT_ONCE)[i]
        answers = want.evaluate(model, "validation")
        assert row["metrics"]["loss"] == pytest.approx(want.metrics(answers, "validation")["loss"])
        assert row["zeros"] == sum(
            s.units - round((1 - level) * s.units) for s in bench.sites
        )  # matrix by matrix
        other = of(rows, "sparsegpt:scope=row", AT_ONCE)[i]  # rows are not repaired
        assert other["metrics"]["loss"] != row["metrics"]["loss"]
        assert "repairing" in row["seconds"]
        assert "repairing" not in other["seconds"]
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert [one.get("repaired") for one in settings.values()] == [True, None]


def test_progress_of_a_study_that_goes_on(finished, tmp_path):
    _, folder, rows = finished
    for name in ("run.json", "rows.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    seen, bench = [], toys.toy_bench(units="weights")
    more = {"training": TRAINING, "within": 1.0, "watch": seen.append}
    study(bench, parse("magnitude,fisher"), [0.5, 0.75, 0.8], tmp_path, **more)
    new = len(read_rows(tmp_path / "rows.jsonl")) - len(rows)
    assert len(seen) == new
    done = [now.done for now in seen if now.row["split"] == "validation"]
    assert done == sorted(done)
    assert {now.total for now in seen} == {2 + 2 * 3 * 3}
    assert done[0] == 2 + 2 * 3 + 1  # those of before count, and only those that are asked for
    assert done[-1] == seen[-1].total


def test_a_study_that_has_not_trained_yet_may_train_otherwise(tmp_path):
    bench = toys.toy_bench(units="weights")

    def stop(now):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(bench, parse("magnitude"), [0.5], tmp_path, training=TRAINING, watch=stop)
    other = replace(TRAINING, examples=16, schedule=None)
    study(bench, parse("magnitude"), [0.5], tmp_path, training=other)
    assert json.loads((tmp_path / "run.json").read_text())["training"]["examples"] == 16
    with pytest.raises(EspalierError, match="examples 16, now 32"):
        study(bench, parse("magnitude"), [0.5], tmp_path, training=TRAINING)


def test_what_a_study_would_not_hear_is_refused(tmp_path, capsys, monkeypatch):
    def said(*words):
        nothing = ["compare", tmp_path / "none", "--task", tmp_path / "none.tsv"]
        return " ".join(refused(capsys, monkeypatch, *nothing, *words).split())

    for word in ("levels 0.5", "epochs 1", "rate 1", "examples 4", "schedule cubic", "refresh 2"):
        option = f"--{word.split()[0]}"
        assert f"{option} is for single weights" in said(*f"--{word}".split())
    weights = ["--what", "weights"]
    for word in ("rate 1", "examples 4", "schedule cubic", "refresh 2"):
        asked = said(*weights, *f"--{word}".split())
        assert f"--{word.split()[0]} is for a study that trains" in asked
    for word in ("every 2", "step 3", "keep 0.2", "all-scores"):
        asked = said(*weights, *f"--{word}".split())
        assert f"--{word.split()[0]} is for units that go one after the other" in asked
    assert "give it --epochs 1" in said(*weights, "--by", "magnitude,movement")
    asked = [*weights, "--epochs", "1", "--refresh", "3"]
    assert "add --schedule cubic" in said(*asked, "--by", "magnitude")
    assert "none.tsv" in said(*asked, "--by", "movement")
    assert "none.tsv" in said(*asked, "--by", "magnitude", "--schedule", "linear")


def test_what_is_pruned_with_the_blocks_is_counted_and_said(finished, tmp_path):
    bench, also = toys.toy_bench(units="weights"), ("embeddings", "norms")
    bench = replace(bench, also=also)
    study(bench, parse("magnitude,movement"), [0.5], tmp_path / "run", training=TRAINING)
    rows = [r for r in read_rows(tmp_path / "run" / "rows.jsonl") if r["level"]]
    units = sum(site.units for site in bench.sites)
    assert units > sum(site.units for site in finished[0].sites)
    assert {r["way"] for r in rows} == {AT_ONCE, RECOVERED, GRADUAL}
    assert {(r["weights"], r["zeros"]) for r in rows} == {(units, units - round(0.5 * units))}
    assert read_run(tmp_path / "run").also == also
    assert read_run(finished[1]).also == ()
    with pytest.raises(EspalierError, match="which multiplies no input"):  # before the first row
        study(bench, parse("magnitude,wanda"), [0.5], tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(EspalierError, match="another sites"):
        study(replace(bench, also=()), parse("magnitude"), [0.5], tmp_path / "run")


SPARSE = "magnitude,magnitude:scope=layer,magnitude:scope=row,fisher,random"


def sparse_bench(scope, keep):
    bench = toys.toy_bench(units="weights")
    scores = criteria.load("magnitude")(bench.model, bench.sites)
    zero(bench.model, chooser(scope)(scores, keep))
    return bench


def test_a_model_that_comes_sparse_has_its_levels_zeros(tmp_path):
    """A criterion may score what is zero above what lives: it is dead all the same."""
    bench = sparse_bench("row", 0.5)
    came = {s.name: s.linear.weight.detach() == 0 for s in bench.sites}
    weights = sum(site.units for site in bench.sites)
    study(bench, parse(SPARSE), [0.5, 0.75], tmp_path / "run")
    rows = [r for r in read_rows(tmp_path / "run" / "rows.jsonl") if r["strategy"] != BASE]
    assert len({r["strategy"] for r in rows}) == 5
    for row in rows:
        assert row["zeros"] == weights - round((1 - row["level"]) * weights), row["strategy"]
    assert all(torch.equal(came[s.name], s.linear.weight == 0) for s in bench.sites)


def test_a_level_below_what_a_model_came_with_is_refused_before_work(tmp_path, monkeypatch):
    bench = sparse_bench("global", 0.5)
    monkeypatch.setattr(type(bench), "evaluate", None)
    message = r"50 % of the weights are zero before.*level 0.4 cannot.*--levels above 0.5"
    with pytest.raises(EspalierError, match=message):
        study(bench, parse("magnitude"), [0.4, 0.6], tmp_path / "run")
    # In all it could be reached, but one matrix has more zeros than that.
    bench = sparse_bench("layer", 0.5)
    with torch.no_grad():
        bench.sites[0].linear.weight.zero_()
    for scope in ("layer", "row"):
        with pytest.raises(EspalierError, match=rf"some a {scope} more than 0.6.*scope=global"):
            study(bench, parse(f"magnitude:scope={scope}"), [0.6], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nothing_left_in_the_matrices_is_a_row_like_any_other(tmp_path):
    study(toys.toy_bench(units="weights"), parse("magnitude:scope=row"), [0.99], tmp_path)
    (row,) = of(read_rows(tmp_path / "rows.jsonl"), "magnitude:scope=row", AT_ONCE)
    assert row["zeros"] == row["weights"]
    assert row["compression"]["matrices"] is None
    assert row["compression"]["model"] > 1
    report = Report([read_run(tmp_path)], 1.0)
    sizes = next(table for table in report.tables() if "pruned matrices" in table.columns)
    assert sizes.rows[0]["pruned matrices"] == "—"
    assert sizes.rows[0]["whole model"].endswith("×")
    report.write(tmp_path)
    assert "| — |" in (tmp_path / "tables" / "summary.md").read_text()


def test_levels_and_strategies_are_read():
    assert levels_of("0.5:0.8:0.05") == [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8]
    assert levels_of("0.8,0.5") == [0.5, 0.8]
    for wrong in ("", "0.5:0.8", "0.8:0.5:0.1", "1", "0", "half", "0.5:0.8:0"):
        with pytest.raises(EspalierError, match="levels are fractions"):
            levels_of(wrong)
    scopes = [one.scope for one in parse("magnitude,wanda,wanda:scope=global,sparsegpt")]
    assert scopes == ["global", "row", "global", "layer"]
    for wrong in ("magnitude:scope=2:4", "magnitude:greedy", "gnorm", "random:3", "taylor:step=2"):
        with pytest.raises(EspalierError):
            parse(wrong)
    with pytest.raises(EspalierError, match=r"one level only.* --by wanda --scope 2:4"):
        parse("magnitude,wanda:scope=2:4")
    with pytest.raises(EspalierError, match="--epochs 1"):
        study(toys.toy_bench(units="weights"), parse("movement"), [0.5], None)
    with pytest.raises(EspalierError, match=r"movement:lr=2: .* are learned"):
        parse("movement:lr=2")
