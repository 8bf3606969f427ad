"""Comparisons of heads and neurons: rows that are right, that survive a kill, and nothing computed twice."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toys
from test_results import HEAD

from espalier import criteria, cut, greedy, masked, prune_steps
from espalier.analysis.reader import read_run
from espalier.architectures.table import architectures
from espalier.core.errors import ConflictError, FolderError, FormatError, InvalidValueError, UnsupportedError
from espalier.experiment.method import parse_methods
from espalier.experiment.record import mask_at, order_of
from espalier.experiment.recovery import Recovery
from espalier.experiment.runner import run_comparison
from espalier.experiment.session import Session
from espalier.io.files import read_json
from espalier.io.rows import exclusive, read_rows
from espalier.testing.tiny import tops
from espalier.training.gradual import GradualUnits

ALL = "gnorm,gnorm:static,entropy,entropy:reverse,gnorm:reverse,taylor,random:3:every=5"
TRAINED = {"remove": [0.25, 0.5], "recovery": Recovery(1, 32, 16, 1e-3, "linear")}


def compare(session, methods, folder, remove=1.0, test=False, **options):
    remove = remove if isinstance(remove, list) else [remove]
    found = parse_methods(methods, session.target, trained="recovery" in options)
    run_comparison(session, found, folder, remove=remove, test=test, **options)
    return read_rows(folder / "rows.jsonl")


def of(rows, label, trial=None, split="validation", phase="one-shot"):
    key = (label, trial, split, phase)
    return [r for r in rows if (r["method"], r["trial"], r["split"], r["phase"]) == key]


def counts(rows, units=18):
    return [round(row["removed"] * units) for row in rows]


def timeless(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def plain_order(session, name, last=1.0, **options):
    """The order of the loop, without a run around it."""
    order, units = [], session.units
    sites = session.sites
    score = criteria.load(name)
    for mask in prune_steps(session.model, sites, score, session.calibration, greedy(last, units), **options):
        removed = [(i, int(u)) for i, s in enumerate(sites) for u in (~mask[s.name]).nonzero().flatten()]
        order += [unit for unit in removed if unit not in order]
    return order


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, session = tmp_path_factory.mktemp("run"), toys.toy_session()
    return session, folder, compare(session, ALL, folder, test=True, all_scores=True, tolerance=0.05)


# ------------------------------------------------------------------------------------------ rows


def test_every_method_removes_all_heads(finished):
    _, _, rows = finished
    for label in ALL.split(",")[:-1]:
        own = of(rows, label)
        assert [r["removed"] for r in own] == [k / 18 for k in range(1, 19)]
        assert sorted(order_of(own)) == [(layer, head) for layer in range(3) for head in range(6)]
    for trial in range(3):
        own = of(rows, "random:3:every=5", trial)
        assert counts(own) == [5, 10, 15, 18]
        assert [len(r["order"]) for r in own] == [5, 5, 5, 3]
        assert {r["seed"] for r in own} == {trial}


def test_a_row_describes_the_masked_model(finished):
    """Measured again in the plainest way: one sentence at a time, gates instead of cuts."""
    session, folder, rows = finished
    row = of(rows, "gnorm")[6]
    with masked(session.model, mask_at(session, folder, "gnorm", 7 / 18)), torch.no_grad():
        found = [
            int(session.model(**session.tokenizer(text, return_tensors="pt")).logits.argmax())
            for text in session.task.validation.texts
        ]
    assert row["predictions"] == "".join(map(str, found))
    assert row["metrics"]["accuracy"] == pytest.approx(np.mean(session.truth("validation") == found))
    assert (row["n"], row["cost"]["units"]) == (60, 11)
    assert row["cost"]["parameters"] < of(rows, "base")[0]["cost"]["parameters"]
    assert row["cost"]["macs"] < of(rows, "base")[0]["cost"]["macs"]


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
    session, _, rows = finished
    assert order_of(of(rows, label)) == plain_order(session, label.split(":")[0], **options)


def test_scores_are_kept_on_request_and_the_lowest_is_removed(finished):
    _, _, rows = finished
    for label, best in (("gnorm", min), ("gnorm:reverse", max), ("taylor", min)):
        for row in of(rows, label):
            kept = [value for layer in row["scores"] for value in layer if value is not None]
            ((layer, head),) = row["order"]
            assert row["score"] == best(kept) == row["scores"][layer][head]
            assert len(kept) == 19 - round(18 * row["removed"])


def test_only_the_chosen_level_is_tested_on_data_nothing_was_chosen_by(finished):
    session, folder, rows = finished
    found = read_run(folder)
    assert of(rows, "base", split="test")[0]["n"] == 50
    for label in ALL.split(",")[:-1]:
        chosen = found.curve(label).within(0.05)
        assert [r["removed"] for r in of(rows, label, split="test")] == [chosen] * bool(chosen)
    chosen = found.curve("random:3:every=5").within(0.05)
    tested = [r["removed"] for t in range(3) for r in of(rows, "random:3:every=5", t, "test")]
    assert tested == [chosen] * 3 * bool(chosen)
    assert sum(r["split"] == "test" for r in rows) > 1
    texts = [set(part.texts) for part in (session.calibrated_on, session.task.validation, session.task.test)]
    assert len(texts[0] | texts[1] | texts[2]) == sum(map(len, texts))


def test_nothing_is_computed_twice(tmp_path, monkeypatch):
    session, scored, measured = toys.toy_session(), [], []
    real, gnorm, load = Session.predict, criteria.load("gnorm"), criteria.load

    def counting(model, sites, batches, **options):
        scored.append(sum(site.units for site in sites))
        return gnorm(model, sites, batches, **options)

    vars(counting).update(vars(gnorm))
    monkeypatch.setattr(Session, "predict", lambda *args: measured.append(args[2]) or real(*args))
    monkeypatch.setattr(criteria, "load", lambda n: counting if n == "gnorm" else load(n))
    compare(session, "gnorm,gnorm:static,gnorm:reverse", tmp_path / "run")
    assert scored.count(18) == 1  # the unpruned model is scored once for the three of them
    assert len(scored) == 1 + 17 + 17
    assert len(measured) <= 1 + 3 * 17 + 1  # the unpruned and the headless model once for all
    scored.clear()
    measured.clear()
    compare(session, "gnorm,gnorm:static,gnorm:reverse", tmp_path / "run")
    assert not scored
    assert not measured


# ------------------------------------------------------------------------------------------ levels


def test_a_finished_run_can_be_extended(tmp_path):
    session = toys.toy_session()
    before = compare(session, "gnorm", tmp_path, 0.5)
    assert before[-1]["removed"] == 0.5
    after = compare(session, "gnorm,entropy", tmp_path, 0.75)
    assert after[: len(before)] == before
    assert counts(of(after, "gnorm")) == list(range(1, 15))
    assert read_json(tmp_path / "run.json")["methods"] == ["gnorm", "entropy"]
    assert compare(session, "gnorm", tmp_path, 0.25) == after


def test_several_levels_are_measured_as_given(tmp_path):
    rows = compare(toys.toy_session(), "gnorm,gnorm:step=3", tmp_path, [0.2, 0.5])
    assert counts(of(rows, "gnorm")) == counts(of(rows, "gnorm:step=3")) == [4, 9]
    assert [len(r["order"]) for r in of(rows, "gnorm")] == [4, 5]


def test_neurons(tmp_path):
    session = toys.toy_session(target="neurons")
    rows = compare(session, "taylor:step=30,magnitude:every=60", tmp_path)
    assert counts(of(rows, "taylor:step=30"), 120) == [30, 60, 90, 120]
    assert counts(of(rows, "magnitude:every=60"), 120) == [60, 120]


def test_progress_ends_below_the_total(tmp_path):
    seen = []
    compare(toys.toy_session(), "gnorm,random:2:every=9", tmp_path, 0.5, test=True, on_progress=seen.append)
    assert [now.done for now in seen] == list(range(1, len(seen) + 1))
    assert {now.total for now in seen} == {2 + 9 + 1 + 2 * (1 + 1)}
    more = []
    compare(toys.toy_session(), "gnorm", tmp_path, 0.6, on_progress=more.append)
    assert all(now.done <= now.total for now in more)


# ------------------------------------------------------------------------------------------ models


@pytest.mark.parametrize("kind", ["albert", "roberta", "distilbert", "electra"])
def test_other_models_with_a_classifier(tmp_path, kind):
    session = toys.toy_session(kind)
    compare(session, "gnorm,taylor:signed=true,random:2:every=4", tmp_path, test=True)
    found = read_run(tmp_path)
    assert found.curve("gnorm").removed[-1] == 1
    assert found.units == session.units


def test_causal_language_models_are_measured_by_perplexity(tmp_path):
    session = toys.toy_session("gpt2")
    rows = compare(session, "gnorm:objective=loss,taylor,random:2:every=6", tmp_path, test=True)
    losses = []
    for batch in session.validation:
        with torch.no_grad():
            losses += [
                session.model(**{k: v[i : i + 1] for k, v in batch.items()}).loss
                for i in range(len(batch["labels"]))
            ]
    want = float(torch.stack(losses).mean().exp())
    assert rows[0]["metrics"]["perplexity"] == pytest.approx(want, rel=1e-5)
    assert read_run(tmp_path).metric == "perplexity"


def test_greedy_scores_again_where_heads_can_only_be_gated(tmp_path):
    session = toys.toy_session("olmo2")
    rows = compare(session, "gnorm,gnorm:static", tmp_path, 0.7)
    assert order_of(of(rows, "gnorm")) == plain_order(session, "gnorm", 0.7)


CLASSIFIERS = sorted(kind for kind in architectures() if "AutoModelForSequenceClassification" in tops(kind))


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_every_model_type_with_a_classifier_of_text(tmp_path, kind):
    """Two cuts by each criterion; the last row equals the masked model."""
    session = toys.toy_session(kind)
    two = 2 / session.units
    rows = compare(session, "gnorm,taylor,entropy,random:2:every=2", tmp_path, two, test=True)
    for label in ("gnorm", "taylor", "entropy"):
        last = of(rows, label)[-1]
        assert last["removed"] == two
        with masked(session.model, mask_at(session, tmp_path, label, two)):
            plain = session.predict(session.model, "validation")
        assert last["metrics"]["loss"] == pytest.approx(float(plain.losses.mean()), rel=1e-5)


# ------------------------------------------------------------------------------------------ refused


def test_another_model_or_other_data_in_the_same_folder(tmp_path):
    session = toys.toy_session()
    compare(session, "gnorm", tmp_path, 0.1)
    other = toys.toy_session()
    with torch.no_grad():
        next(other.model.parameters()).add_(1)
    for changed, names in (
        (other, "fingerprint"),
        (toys.toy_session(calibration=15), "calibration"),
        (toys.toy_session(calibration_batch_size=4), "calibration"),
        (toys.toy_session(target="neurons"), "neurons"),
        (replace(session, seed=1), "seed"),
    ):
        with pytest.raises(ConflictError) as error:
            compare(changed, "magnitude", tmp_path, 0.1)
        assert error.value.path == tmp_path
        assert names in error.value.differences or names in str(error.value)


def test_other_settings_under_the_same_label(tmp_path):
    session = toys.toy_session()
    (gnorm,) = parse_methods("gnorm", "heads")
    run_comparison(session, [replace(gnorm, step=3)], tmp_path, remove=[0.5], test=False)
    with pytest.raises(ConflictError) as error:
        compare(session, "gnorm", tmp_path, 0.5)
    assert error.value.differences == "step 3, now 1"


def test_what_cannot_work_is_refused_before_anything_is_written(tmp_path):
    for remove in (0.01, 0.0, 1.5, []):
        with pytest.raises(InvalidValueError) as error:
            compare(toys.toy_session(), "gnorm", tmp_path / "x", remove)
        assert error.value.parameter == "remove"
    assert not (tmp_path / "x").exists()
    compare(toys.toy_session(), "gnorm", tmp_path, 0.1)
    with pytest.raises(UnsupportedError):  # only one unit was removed
        mask_at(toys.toy_session(), tmp_path, "gnorm", 0.5)


# ------------------------------------------------------------------------------------------ interrupted


def test_twenty_kills_and_the_same_rows(tmp_path):
    """Killed by SIGKILL at twenty random moments; in the end the rows are those of a run left alone."""
    script = Path(__file__).with_name("killed_run.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path, "20"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    kills, moments = json.loads(done.stdout)
    assert kills == 20
    assert len(set(moments)) > 8  # numbers of rows at the kills: all along the run
    killed, alone = (timeless(read_rows(tmp_path / name / "rows.jsonl")) for name in ("killed", "alone"))
    assert killed == alone
    killed, alone = (read_rows(tmp_path / name / "scores.jsonl") for name in ("killed", "alone"))
    assert killed == alone


def test_two_runs_in_one_folder(tmp_path):
    with exclusive(tmp_path), pytest.raises(FolderError):
        compare(toys.toy_session(), "gnorm", tmp_path)


def test_half_a_line_is_dropped_and_a_damaged_one_is_an_error(tmp_path):
    session, path = toys.toy_session(), tmp_path / "rows.jsonl"
    whole = compare(session, "gnorm", tmp_path, 0.2)
    raw = path.read_bytes()
    path.write_bytes(raw[:-30])
    assert timeless(compare(session, "gnorm", tmp_path, 0.2)) == timeless(whole)
    path.write_bytes(b"{oops\n" + raw)
    with pytest.raises(FormatError) as error:
        compare(session, "gnorm", tmp_path)
    assert error.value.path == path


def test_a_full_disk(tmp_path, monkeypatch):
    session = toys.toy_session()
    compare(session, "gnorm", tmp_path, 0.1)
    before = (tmp_path / "rows.jsonl").read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FolderError) as error:
        compare(session, "gnorm", tmp_path, 0.5)
    assert error.value.path == tmp_path / "rows.jsonl" or error.value.path.parent == tmp_path
    monkeypatch.undo()
    assert (tmp_path / "rows.jsonl").read_bytes().startswith(before)
    assert counts(of(compare(session, "gnorm", tmp_path, 0.5), "gnorm")) == list(range(1, 10))


# ------------------------------------------------------------------------------------------ training


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder, session = tmp_path_factory.mktemp("trained"), toys.toy_session()
    return folder, compare(
        session, "gnorm:static,random:1:every=4", folder, test=True, tolerance=1.0, **TRAINED
    )


def test_heads_are_recovered_and_pruned_gradually(trained):
    folder, rows = trained
    for label, trial in (("gnorm:static", None), ("random:1:every=4", 0)):
        for phase in ("one-shot", "recovered", "gradual"):
            own = of(rows, label, trial, phase=phase)
            assert counts(own) == [4, 9], (label, phase)
            assert [row["cost"]["units"] for row in own] == [14, 9]
        assert counts(of(rows, label, trial, "test")) == [9]
        assert counts(of(rows, label, trial, "test", "recovered")) == [4, 9]
        assert {r["schedule"] for r in of(rows, label, trial, phase="gradual")} == {"linear"}
    losses = {(r["method"], r["phase"], r["removed"]): r["metrics"]["loss"] for r in rows}
    assert len(set(losses.values())) == len(losses)  # every training changed something
    assert counts(of(rows, "base", phase="recovered")) == [0]
    assert {key for key in read_run(folder).curves if key[0] == "gnorm:static"} == {
        ("gnorm:static", phase) for phase in ("one-shot", "recovered", "gradual")
    }


@pytest.mark.parametrize("kept", [1, 2, 4, 5, 7, 9, 12])
def test_an_interrupted_run_that_trains_heads_resumes_to_the_same_rows(trained, tmp_path, kept):
    folder, rows = trained
    lines = (folder / "rows.jsonl").read_bytes().splitlines(keepends=True)
    for name in ("run.json", "scores.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "rows.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:9])
    methods = "gnorm:static,random:1:every=4"
    again = compare(toys.toy_session(), methods, tmp_path, test=True, tolerance=1.0, **TRAINED)
    assert timeless(again) == timeless(rows)


def test_a_greedy_run_recovers_a_quarter_a_half_and_three_quarters(tmp_path):
    recovery = Recovery(1, 16, 16, 1e-3)
    rows = compare(toys.toy_session(), "taylor", tmp_path, recovery=recovery)
    assert counts(of(rows, "taylor")) == list(range(1, 19))
    assert counts(of(rows, "taylor", phase="recovered")) == [4, 9, 14]
    assert not of(rows, "taylor", phase="gradual")


@pytest.mark.parametrize("target", ["heads", "neurons"])
def test_the_cut_model_is_the_model_that_was_trained(target, tmp_path, monkeypatch):
    """Gradual pruning of units: before the cut, the held columns make the same predictions."""
    session, seen = toys.toy_session(target=target), []

    def both(model, mask, **options):
        before = session.predict(model, "validation")
        out = cut(model, mask, **options)
        seen.append((mask.kept, before, session.predict(model, "validation")))
        return out

    monkeypatch.setattr("espalier.training.gradual.cut", both)
    recovery = Recovery(1, 32, 8, 1e-2, "cubic", 2)
    compare(session, "taylor:static", tmp_path, [0.5], recovery=recovery)
    assert [kept for kept, *_ in seen] == ([14 / 18, 0.5] if target == "heads" else [0.75, 0.5])
    for _, before, after in seen:
        np.testing.assert_allclose(before.losses, after.losses, rtol=1e-4, atol=1e-6)
        assert (before.values == after.values).all()


def test_units_leave_on_schedule_and_stay_out(tmp_path, monkeypatch):
    fractions, real = [], GradualUnits.after_step

    def watched(self, run):
        before = self.mask
        real(self, run)
        assert not any((self.mask[name] & ~before[name]).any() for name in before)
        fractions.append(1 - self.mask.kept)

    monkeypatch.setattr(GradualUnits, "after_step", watched)
    recovery = Recovery(1, 40, 4, 1e-3, "linear", 1)
    rows = compare(toys.toy_session(), "taylor:static", tmp_path, 0.2, recovery=recovery)
    assert counts(of(rows, "taylor:static", phase="gradual")) == [4]
    assert fractions == sorted(fractions)
    assert len(set(fractions)) > 3
    assert fractions[-1] == 4 / 18


def test_a_resumed_run_keeps_the_precision_it_was_begun_with(tmp_path):
    from espalier.experiment.manifest import begun_precision

    assert begun_precision(tmp_path, "auto") == "auto"
    (tmp_path / "run.json").write_text(json.dumps({**HEAD, "precision": "bf16"}), encoding="utf-8")
    assert begun_precision(tmp_path, "auto") == "bf16"
    assert begun_precision(tmp_path, "fp32") == "fp32"
