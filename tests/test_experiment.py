"""The experiment: rows that are right, that survive a kill, and that nothing is computed for twice."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import toys

from espalier import EspalierError, criteria, greedy, masked, prune
from espalier.analysis import read_run
from espalier.architectures.registry import architectures
from espalier.experiment import compare, mask_at, removed
from espalier.experiment import method as strategies
from espalier.io.rows import read_rows
from espalier.testing.tiny import tops

ALL = "gnorm,gnorm:static,entropy,entropy:reverse,gnorm:reverse,taylor,random:3:every=5"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    bench = toys.toy_bench()
    compare(bench, strategies.parse(ALL), folder, all_scores=True, within=0.05)
    return bench, folder, read_rows(folder / "rows.jsonl")


def of(rows, label, trial=None, split="validation"):
    return [r for r in rows if (r["strategy"], r["trial"], r["split"]) == (label, trial, split)]


def test_every_strategy_goes_down_to_the_last_head(finished):
    _, _, rows = finished
    for label in ALL.split(",")[:-1]:
        own = of(rows, label)
        assert [r["k"] for r in own] == list(range(1, 19))
        assert sorted(tuple(u) for r in own for u in r["cut"]) == [
            (layer, head) for layer in range(3) for head in range(6)
        ]
        assert [[r["layer"], r["head"]] for r in own] == [r["cut"][0] for r in own]
    for trial in range(3):
        own = of(rows, "random:3:every=5", trial)
        assert [r["k"] for r in own] == [5, 10, 15, 18]
        assert [len(r["cut"]) for r in own] == [5, 5, 5, 3]
        assert {r["seed"] for r in own} == {trial}


def test_a_row_says_what_the_masked_model_does(finished):
    """Measured again in the plainest way: one sentence at a time, gates instead of cuts."""
    bench, folder, rows = finished
    truth = bench.truth("validation")
    row = of(rows, "gnorm")[6]
    with masked(bench.model, mask_at(bench, folder, "gnorm", 7)):
        guesses = []
        for text in bench.task.validation.texts:
            with torch.no_grad():
                out = bench.model(**bench.tokenizer(text, return_tensors="pt"))
            guesses.append(int(out.logits.argmax()))
    assert row["predictions"] == "".join(map(str, guesses))
    assert row["metrics"]["accuracy"] == pytest.approx(np.mean(truth == guesses))
    assert row["n"] == 60
    assert row["units"] == 11
    assert row["parameters"] < of(rows, "base")[0]["parameters"]


@pytest.mark.parametrize(
    ("label", "options"),
    [
        ("gnorm", {}),
        ("gnorm:reverse", {"reverse": True}),
        ("gnorm:static", {"rescore": False}),
        ("taylor", {}),
        ("entropy", {"rescore": False}),
        ("entropy:reverse", {"rescore": False, "reverse": True}),
    ],
)
def test_orders_are_those_of_the_plain_loop(finished, label, options):
    bench, _, rows = finished
    order = []
    for mask in prune(
        bench.model,
        bench.sites,
        criteria.load(label.split(":")[0]),
        bench.calibration,
        greedy(0, 18),
        **options,
    ):
        closed = {
            (layer, int(head))
            for layer, site in enumerate(bench.sites)
            for head in (~mask[site.name]).nonzero().flatten()
        }
        order += closed - set(order)
    assert removed(rows, label) == order


def test_scores_are_kept_on_request_and_name_the_lowest(finished):
    _, _, rows = finished
    for label, best in (("gnorm", min), ("gnorm:reverse", max), ("taylor", min)):
        for row in of(rows, label):
            alive = [v for layer in row["scores"] for v in layer if v is not None]
            assert row["score"] == best(alive)
            assert row["scores"][row["layer"]][row["head"]] == row["score"]
            assert len(alive) == 18 - row["k"] + 1


def test_the_chosen_point_is_tested_on_data_nothing_was_chosen_by(finished):
    bench, folder, rows = finished
    found = read_run(folder)
    assert of(rows, "base", split="test")[0]["n"] == 50
    for label in ALL.split(",")[:-1]:
        (tested,) = of(rows, label, split="test")
        assert tested["k"] == found.curve(label).unbroken(0.05)
        assert tested["cut"] == []
    level = found.curve("random:3:every=5").unbroken(0.05)
    assert [r["k"] for t in range(3) for r in of(rows, "random:3:every=5", t, "test")] == [level] * 3
    texts = [set(part.texts) for part in (bench.calibrated_on, bench.task.validation, bench.task.test)]
    assert len(texts[0] | texts[1] | texts[2]) == sum(map(len, texts))


def test_nothing_is_computed_twice(tmp_path, monkeypatch):
    bench = toys.toy_bench()
    scored, measured = [], []
    real = type(bench).evaluate
    monkeypatch.setattr(
        type(bench),
        "evaluate",
        lambda self, m, part, begin=None: measured.append(part) or real(self, m, part, begin),
    )
    gnorm = criteria.load("gnorm")

    def counting(model, sites, batches, **options):
        scored.append(sum(site.units for site in sites))
        return gnorm(model, sites, batches, **options)

    counting.targets, counting.rescored = gnorm.targets, True
    load = criteria.load
    monkeypatch.setattr(criteria, "load", lambda n: counting if n == "gnorm" else load(n))
    asked = strategies.parse("gnorm,gnorm:static,gnorm:reverse")
    compare(bench, asked, tmp_path / "run", tested=False)
    assert scored.count(18) == 1  # the unpruned model is scored once for the three of them
    assert len(scored) == 1 + 17 + 17
    assert len(measured) <= 1 + 3 * 17 + 1  # the unpruned and the headless model once for all
    scored.clear()
    measured.clear()
    compare(bench, asked, tmp_path / "run", tested=False)
    assert not scored
    assert not measured  # a finished stage is never redone


def test_a_finished_run_can_be_asked_for_more(tmp_path):
    bench = toys.toy_bench()
    compare(bench, strategies.parse("gnorm"), tmp_path, keep=0.5, tested=False)
    before = read_rows(tmp_path / "rows.jsonl")
    assert before[-1]["k"] == 9
    compare(bench, strategies.parse("gnorm,entropy"), tmp_path, keep=0.25, tested=False)
    after = read_rows(tmp_path / "rows.jsonl")
    assert after[: len(before)] == before
    assert [r["k"] for r in of(after, "gnorm")] == list(range(1, 15))
    assert json.loads((tmp_path / "run.json").read_text())["strategies"] == ["gnorm", "entropy"]


def test_another_model_in_the_same_folder_is_refused(tmp_path):
    bench = toys.toy_bench()
    compare(bench, strategies.parse("gnorm"), tmp_path, keep=0.9, tested=False)
    with torch.no_grad():
        next(bench.model.parameters()).add_(1)
    other = toys.toy_bench()
    object.__setattr__(other, "model", bench.model)
    with pytest.raises(EspalierError, match="another fingerprint"):
        compare(other, strategies.parse("gnorm"), tmp_path, keep=0.9, tested=False)
    with pytest.raises(EspalierError, match="another parts"):
        compare(toys.toy_bench(calibration=15), strategies.parse("gnorm"), tmp_path, tested=False)


@pytest.mark.parametrize("kind", ["albert", "roberta", "distilbert", "electra"])
def test_other_models_with_a_classifier(tmp_path, kind):
    bench = toys.toy_bench(kind)
    compare(bench, strategies.parse("gnorm,taylor:signed=true,random:2:every=4"), tmp_path)
    found = read_run(tmp_path)
    units = sum(site.units for site in bench.sites)
    assert found.curve("gnorm").removed[-1] == units
    assert found.units == units


def test_causal_language_models_are_judged_by_perplexity(tmp_path):
    bench = toys.toy_bench("gpt2")
    compare(bench, strategies.parse("gnorm:objective=loss,taylor,random:2:every=6"), tmp_path)
    rows = read_rows(tmp_path / "rows.jsonl")
    losses = []
    for batch in bench.validation:
        with torch.no_grad():
            losses += [
                bench.model(**{k: v[i : i + 1] for k, v in batch.items()}).loss
                for i in range(len(batch["labels"]))
            ]
    assert rows[0]["metrics"]["perplexity"] == pytest.approx(
        float(torch.stack(losses).mean().exp()), rel=1e-5
    )
    assert read_run(tmp_path).metric == "perplexity"


def test_neurons_too(tmp_path):
    bench = toys.toy_bench(units="neurons")
    compare(bench, strategies.parse("taylor:step=30,magnitude:every=60"), tmp_path)
    rows = read_rows(tmp_path / "rows.jsonl")
    assert [r["k"] for r in of(rows, "taylor:step=30")] == [30, 60, 90, 120]


def test_greedy_scores_again_where_heads_can_only_be_gated(tmp_path):
    bench = toys.toy_bench("olmo2")
    units = sum(site.units for site in bench.sites)
    compare(bench, strategies.parse("gnorm,gnorm:static"), tmp_path, keep=0.3, tested=False)
    rows = read_rows(tmp_path / "rows.jsonl")
    order = []
    for mask in prune(
        bench.model, bench.sites, criteria.load("gnorm"), bench.calibration, greedy(0.3, units)
    ):
        closed = [
            (layer, int(head))
            for layer, site in enumerate(bench.sites)
            for head in (~mask[site.name]).nonzero().flatten()
        ]
        order += [unit for unit in closed if unit not in order]
    assert removed(rows, "gnorm") == order


def test_other_settings_under_the_same_label_are_refused(tmp_path):
    bench = toys.toy_bench()
    compare(bench, strategies.parse("gnorm", step=3), tmp_path, keep=0.5, tested=False)
    with pytest.raises(EspalierError, match=r"holds gnorm with other settings \(step 3, now 1\)"):
        compare(bench, strategies.parse("gnorm"), tmp_path, keep=0.5, tested=False)
    with pytest.raises(EspalierError, match="another parts"):
        compare(toys.toy_bench(batch=4), strategies.parse("taylor"), tmp_path, tested=False)


def test_what_cannot_work_is_said_before_anything_is_done(tmp_path):
    bench = toys.toy_bench(units="neurons")
    with pytest.raises(EspalierError, match="--what weights --keep"):
        compare(toys.toy_bench(units="weights"), strategies.parse("taylor"), tmp_path / "weights")
    assert not (tmp_path / "weights").exists()
    with pytest.raises(EspalierError, match="gnorm scores heads, not neurons"):
        compare(bench, strategies.parse("taylor,gnorm"), tmp_path)
    with pytest.raises(EspalierError, match="nothing to remove"):
        compare(toys.toy_bench(), strategies.parse("gnorm"), tmp_path, keep=0.99)
    assert not (tmp_path / "rows.jsonl").exists()


def test_twenty_kills_and_the_same_rows(tmp_path):
    """The run is killed with SIGKILL at twenty random moments; in the end its rows are those of a run that
    was left alone, but for the seconds it took."""
    script = Path(__file__).with_name("killed_run.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path, "20"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kills, moments = json.loads(done.stdout)
    assert kills == 20
    assert len(set(moments)) > 8  # rows there were when it was killed: all along the run

    def timeless(folder):
        rows = read_rows(tmp_path / folder / "rows.jsonl")
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]

    assert timeless("killed") == timeless("alone")
    scores = [read_rows(tmp_path / folder / "scores.jsonl") for folder in ("killed", "alone")]
    assert scores[0] == scores[1]


def test_two_runs_in_one_folder_are_refused(tmp_path):
    from espalier.io.rows import exclusive

    with exclusive(tmp_path), pytest.raises(EspalierError, match="another run is writing"):
        compare(toys.toy_bench(), strategies.parse("gnorm"), tmp_path)


def test_half_a_line_is_forgotten_and_a_damaged_one_is_named(tmp_path):
    bench = toys.toy_bench()
    compare(bench, strategies.parse("gnorm"), tmp_path, keep=0.8, tested=False)
    path = tmp_path / "rows.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    compare(bench, strategies.parse("gnorm"), tmp_path, keep=0.8, tested=False)
    strip = [{k: v for k, v in json.loads(r).items() if k != "seconds"} for r in whole.splitlines()]
    assert [{k: v for k, v in r.items() if k != "seconds"} for r in read_rows(path)] == strip
    path.write_bytes(b"{oops\n" + whole)
    with pytest.raises(EspalierError, match="line 1 of"):
        compare(bench, strategies.parse("gnorm"), tmp_path, tested=False)


def test_a_full_disk_ends_in_a_sentence(tmp_path, monkeypatch):
    import os

    bench = toys.toy_bench()
    compare(bench, strategies.parse("gnorm"), tmp_path, keep=0.9, tested=False)
    before = (tmp_path / "rows.jsonl").read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EspalierError, match=r"No space left on device\. The 3 rows before are safe"):
        compare(bench, strategies.parse("gnorm"), tmp_path, keep=0.5, tested=False)
    monkeypatch.undo()
    assert (tmp_path / "rows.jsonl").read_bytes().startswith(before)
    compare(bench, strategies.parse("gnorm"), tmp_path, keep=0.5, tested=False)
    assert [r["k"] for r in of(read_rows(tmp_path / "rows.jsonl"), "gnorm")] == list(range(1, 10))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no strategy given"),
        ("gnrom", "did you mean 'gnorm'"),
        ("gnorm:statc", "did you mean 'static'"),
        ("gnorm:objectve=loss", "did you mean 'objective'"),
        ("gnorm:25", "only random has trials"),
        ("gnorm,gnorm", "asked for twice"),
        ("gnorm:every=0", "whole number from 1"),
        ("gnorm:step=4:every=6", "multiple of step"),
    ],
)
def test_wrong_strategies_are_explained(text, says):
    with pytest.raises(EspalierError, match=says):
        strategies.parse(text)


def test_strategies_are_read():
    made = {s.label: s for s in strategies.parse("gnorm,taylor:static:reverse,random:4,entropy:form=C")}
    assert made["gnorm"].rescore
    assert not made["taylor:static:reverse"].rescore
    assert made["taylor:static:reverse"].reverse
    assert made["random:4"].trials == 4
    assert not made["entropy:form=C"].rescore
    assert made["entropy:form=C"].options == {"form": "C"}


CLASSIFIERS = sorted(kind for kind in architectures() if "AutoModelForSequenceClassification" in tops(kind))


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_every_model_type_with_a_classifier_of_text(tmp_path, kind):
    """A few cuts by each criterion; the last row equals the model cut in the plainest way."""
    bench = toys.toy_bench(kind)
    units = sum(site.units for site in bench.sites)
    keep = (units - 2) / units
    compare(bench, strategies.parse("gnorm,taylor,entropy,random:2:every=2"), tmp_path, keep=keep)
    rows = read_rows(tmp_path / "rows.jsonl")
    for label in ("gnorm", "taylor", "entropy"):
        last = of(rows, label)[-1]
        assert last["k"] == 2
        with masked(bench.model, mask_at(bench, tmp_path, label, 2)):
            plain = bench.evaluate(bench.model, "validation")
        assert last["metrics"]["loss"] == pytest.approx(float(plain.losses.mean()), rel=1e-5)
