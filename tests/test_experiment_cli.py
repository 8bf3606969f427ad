"""The verbs of an experiment as a user types them: compare, report, prune, score, check gradients."""

import json
import shutil

import pytest
import torch
import toys
from commands import refused, typed
from typer.testing import CliRunner

import espalier.cli.progress
from espalier import load, plan_of
from espalier.cli import app, main
from espalier.cli.compare import BY
from espalier.reports.words import difference

QUICK = ["--calibrate", "16", "--validate", "40", "--test", "40", "--length", "32"]


@pytest.fixture(scope="module")
def run(place):
    words = ["compare", place / "model", "--task", place / "data.tsv", "-o", place / "run"]
    strategies = "gnorm,gnorm:static,entropy,entropy:reverse,gnorm:reverse,taylor,random:3:every=6"
    out = typed(*words, "--by", strategies, "--within", "0.05", *QUICK)
    return place / "run", out


def test_compare_ends_with_a_table_and_files(run):
    folder, out = run
    assert "gnorm:static" in out
    assert "random:3:every=6" in out
    for name in ("run.json", "rows.jsonl", "scores.jsonl", "pooling.json"):
        assert (folder / name).is_file(), name
    figures = {file.name for file in (folder / "figures").iterdir()}
    for stem in ("curves", "boxes", "masks"):
        assert {f"{stem}.png", f"{stem}.pdf"} <= figures
    assert any(name.startswith("heat") for name in figures)
    assert any(name.startswith("order") for name in figures)
    assert any(name.startswith("pooling") for name in figures)
    assert (folder / "tables" / "summary.md").is_file()


def test_report_makes_it_again_without_the_model(run, tmp_path):
    folder, _ = run
    found = json.loads(typed("report", folder, "-o", tmp_path / "again", "--json"))
    assert found["files"]
    typed("report", folder, "-o", tmp_path / "p", "--published", "--no-figures")
    written = sorted(file.name for file in (tmp_path / "p" / "published").iterdir())
    assert "pruned_heads_accuracy(model)basedonGreedyGnorm.csv" in written
    assert "pruned_heads_accuracy(model)basedonAEinverse.csv" in written
    csv = tmp_path / "p" / "published" / "pruned_heads_accuracy(model)basedonGreedyGnorm.csv"
    raw = csv.read_bytes()
    assert raw.startswith(b"Pruned_Heads,Accuracy\r\n0,")
    assert raw.count(b"\r\n") == 20


def test_prune_saves_a_model_that_loads(place, tmp_path):
    words = ["prune", place / "model", "--task", place / "data.tsv", "--by", "taylor"]
    out = typed(*words, "--keep", "0.5", "-o", tmp_path / "small", "--json", *QUICK)
    row = json.loads(out)
    assert row["removed"] == 9
    small = load(tmp_path / "small")
    assert sum(map(len, plan_of(small).keep.values())) == 9
    assert row["bytes"]["after"] == (tmp_path / "small" / "model.safetensors").stat().st_size
    assert row["after"]["heads"] == 9
    again = typed(*words, "--keep", "0.5", "-o", tmp_path / "small", *QUICK)
    assert "speed, measured" in again


def test_prune_from_a_run_takes_its_order(place, run, tmp_path):
    words = ["prune", place / "model", "--task", place / "data.tsv", "--by", "gnorm", *QUICK]
    row = json.loads(typed(*words, "--keep", "0.5", "--from", run[0], "-o", tmp_path / "s", "--json"))
    rows = [json.loads(line) for line in (run[0] / "rows.jsonl").read_text().splitlines()]
    own = [r for r in rows if r["strategy"] == "gnorm" and r["split"] == "validation"]
    gone = {(layer, head) for r in own[:9] for layer, head in r["cut"]}
    keep = plan_of(load(tmp_path / "s")).keep
    kept = {(i, head) for i, heads in enumerate(keep.values()) for head in heads}
    assert not gone & kept
    assert len(kept) == 9
    assert row["test"]["n"] == 36  # 15 % of 240


def test_score_and_check_gradients(place, tmp_path):
    where = [place / "model", "--task", place / "data.tsv", "--calibrate", "16"]
    typed("score", *where, "--by", "gnorm", "-o", tmp_path / "scores.json")
    found = json.loads((tmp_path / "scores.json").read_text())
    assert [len(v) for v in found["scores"].values()] == [6, 6, 6]
    found = json.loads(typed("check", "gradients", *where, "--few", "4", "--sample", "3", "--json"))
    assert {row["verdict"] for row in found} <= {"ok", "look"}
    assert "neurons" in typed("score", *where, "--by", "magnitude", "--what", "neurons")


def test_the_recipe_of_a_users_own(place, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    toys.table_of(folder / "validation.tsv", n=90, seed=9, classes=3)
    (tmp_path / "mine.toml").write_text(
        f"""
about = "a toy"
model = "{place / "model"}"
dataset = "{folder}"
text = "sentence"
label = "label"
labels = {{ 0 = 0, 2 = 1 }}
length = 32
[faithful]
calibration_split = "validation"
calibration = 20
validation_split = "validation"
validation = 30
test_split = "validation"
test = 30
first = true
score_dropped = true
entropy_calibration = 40
batch_size = 4
strategies = ["gnorm:pooling=batch:objective=logits", "entropy:form=C", "random:2:every=6"]
[honest]
calibration_split = "validation"
calibration = 16
validation_split = "validation"
validation = 20
test_split = "validation"
test = 20
strategies = ["gnorm", "random:2:every=6"]
"""
    )
    words = ["compare", "--recipe", tmp_path / "mine.toml", "--no-figures"]
    typed(*words, "--faithful", "-o", tmp_path / "faithful")
    typed(*words, "-o", tmp_path / "honest")
    faithful = json.loads((tmp_path / "faithful" / "run.json").read_text())
    honest = json.loads((tmp_path / "honest" / "run.json").read_text())
    assert [faithful["parts"][p]["n"] for p in ("calibration", "validation", "test")] == [
        20,
        30,
        30,
    ]
    assert any("share texts, as published" in note for note in faithful["notes"])
    assert not any("share texts" in note for note in honest["notes"])
    assert set(faithful["parts"]["validation"]["labels"]) <= {"0", "1"}


def test_wrong_words_are_explained(place, capsys, monkeypatch, tmp_path):
    model, data = place / "model", place / "data.tsv"
    for words, says in (
        (["compare"], "give a model and a task"),
        (["compare", model, "--task", data, "--by", "gnrom"], "did you mean 'gnorm'"),
        (["compare", model, "--task", "data.xyz"], "no task 'data.xyz'"),
        (["compare", "nowhere", "--task", data], "no model 'nowhere'. There is no such folder"),
        (["compare", "brt", "--task", data], "no model 'brt'. There"),  # bert has no weights
        (["compare", "--recipe", "bert-financial"], "did you mean 'bert-financial-news'"),
        (["compare", model, "--task", data, "--keep", "2"], "a fraction of the units"),
        (["prune", model, "--task", data], "either --keep 0.5 or --within 0.01"),
        (["prune", model, "--task", data, "--keep", ".5", "--by", "gnorm,taylor"], "one strategy"),
        (["score", model, "--task", data, "--text", "sentense"], "did you mean 'sentence'"),
        (["report", tmp_path], str(tmp_path)),
        (["list", "recipe"], "did you mean 'recipes'"),
    ):
        assert says in refused(capsys, monkeypatch, *words), words


def test_prune_does_not_work_for_nothing(place, capsys, monkeypatch, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("mine")
    words = ["prune", place / "model", "--task", place / "data.tsv", "--keep", "0.5", *QUICK]
    said = refused(capsys, monkeypatch, *words, "-o", tmp_path / "notes")
    assert "will not be replaced" in said
    assert not (tmp_path / "notes-run").exists()


def test_a_model_without_a_classifier_is_not_compared(place, capsys, monkeypatch, tmp_path):
    from espalier.testing.tiny import tiny

    tiny("bert").save_pretrained(tmp_path / "bare")
    toys.tokenizer().save_pretrained(tmp_path / "bare")
    said = refused(capsys, monkeypatch, "compare", tmp_path / "bare", "--task", place / "data.tsv")
    assert "no trained head" in said
    assert "espalier train" in said
    toys.table_of(tmp_path / "three.tsv", classes=3)
    said = refused(capsys, monkeypatch, "compare", place / "model", "--task", tmp_path / "three.tsv")
    assert "3 classes, the model answers 2" in said


def test_what_is_listed():
    assert {row["task"] for row in json.loads(typed("list", "tasks", "--json"))} >= {"demo", "mnli"}
    recipes = json.loads(typed("list", "recipes", "--json"))
    assert len(recipes) == 4


@pytest.fixture
def words_of(caplog):
    """What is said beside the result: on stderr, and in the log, which pytest takes to itself."""

    def run(*words):
        caplog.clear()
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == 0, done.output + str(done.exception)
        return done.stderr + caplog.text

    return run


def test_only_the_parts_that_are_used_are_spoken_of(place, run, words_of, tmp_path):
    where = [place / "model", "--task", place / "data.tsv"]
    for verb in (["score"], ["check", "gradients", "--few", "4", "--sample", "3"]):
        said = words_of(*verb, *where, "--calibrate", "16")
        assert "scored on 16 examples" in said
        assert "chosen on" not in said
        assert "reported on" not in said
    said = words_of(
        *("prune", *where, "--by", "gnorm", "--keep", "0.5", "--from", run[0]),
        *("-o", tmp_path / "s", "--calibrate", "7", "--validate", "9", "--test", "20"),
    )
    assert "data.tsv: reported on 20 examples" in said
    assert f"the order is that of {run[0]}: data.tsv, scored on 16, chosen on 36 examples" in said
    assert "on 7" not in said
    assert "on 9" not in said


def test_a_pruned_folder_says_where_it_comes_from(place, run, tmp_path):
    words = ["prune", place / "model", "--task", place / "data.tsv", "--by", "gnorm", *QUICK]
    row = json.loads(typed(*words, "--keep", "0.5", "--from", run[0], "-o", tmp_path / "s", "--json"))
    origin = json.loads((tmp_path / "s" / "plan.json").read_text())["origin"]
    assert origin["test before"] == row["test"]["before"]
    assert origin["test after"] == row["test"]["after"]
    wanted = {
        "strategy": "gnorm",
        "removed": 9,
        "task": "data.tsv",
        "model": "model",
        "run": "run",
        "seed": 0,
        "calibration": 16,
        "validation": 36,
        "test": 36,
        "metric": "accuracy",
    }
    assert {name: origin[name] for name in wanted} == wanted


def test_prune_warns_where_a_run_ended_before_the_limit(place, words_of, tmp_path):
    where = [place / "model", "--task", place / "data.tsv", *QUICK]
    typed("compare", *where, "--by", "gnorm", "--keep", "0.7", "-o", tmp_path / "run")
    words = ["prune", *where, "--by", "gnorm", "--from", tmp_path / "run", "-o", tmp_path / "s"]
    assert "ends at 5 of 18 removed" in words_of(*words, "--within", "1")
    assert "ends at" not in words_of(*words, "--keep", "0.8")


def test_what_cannot_work_is_refused_before_anything_is_loaded(place, run, capsys, monkeypatch, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    nothing = ["nowhere", "--task", "nothing.tsv"]  # would be an error if it were looked for
    for words, says in (
        (["prune", *nothing, "--keep", "50"], "a fraction of the units"),
        (["compare", *nothing, "--keep", "50"], "a fraction of the units"),
        (["compare", *nothing, "-o", tmp_path / "mine"], "holds thesis.tex"),
        (["compare", *nothing, "-o", tmp_path / "mine" / "thesis.tex"], "is a file"),
        (["prune", *nothing, "--keep", ".5", "--from", tmp_path / "mine"], "cannot read"),
        (["prune", *nothing, "--keep", ".5", "--by", "magnitude", "--from", run[0]], "magnitude"),
    ):
        assert says in refused(capsys, monkeypatch, *words), words
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("verb", ["compare", "prune", "train"])
def test_ctrl_c_ends_with_a_word_and_the_same_again_goes_on(
    verb, place, capsys, monkeypatch, words_of, tmp_path
):
    words = [verb, place / "model", "--task", place / "data.tsv", "-o", tmp_path / "out"]
    more = {
        "compare": [*QUICK, "--by", "gnorm", "--no-figures"],
        "prune": [*QUICK, "--by", "gnorm", "--within", "0.05"],
        "train": ["--epochs", "2", "--length", "32"],
    }
    words += more[verb]
    folder = tmp_path / ("out-run" if verb == "prune" else "out")
    usual, seen = espalier.cli.progress._lines, []

    def lines(what):
        tell = usual(what)

        def stop(*now):
            seen.append(now)
            if len(seen) == 7:
                raise KeyboardInterrupt
            tell(*now)

        return stop

    monkeypatch.setattr(espalier.cli.progress, "_lines", lines)
    monkeypatch.setattr("sys.argv", ["espalier", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr().err
    assert end.value.code == 130
    kept = "the state after step 6 is in" if verb == "train" else "7 rows are in"
    assert f"stopped; {kept} {folder}; type the same again to go on" in said
    assert ("going on at step 6" if verb == "train" else f"7 rows are in {folder} already") in (
        words_of(*words)
    )


def test_a_model_that_guesses_is_said_to(place, words_of, tmp_path):
    """Every answer is the same class: right as often as that class is there, and no more."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(place / "model", tmp_path / "flat")
    weights = load_file(tmp_path / "flat" / "model.safetensors")
    weights["classifier.weight"].zero_()
    weights["classifier.bias"][:] = torch.tensor([0.0, 1.0])
    save_file(weights, tmp_path / "flat" / "model.safetensors", {"format": "pt"})
    words = ["compare", tmp_path / "flat", "--task", place / "data.tsv", *QUICK, "--every", "6"]
    said = words_of(*words, "--by", "magnitude", "-o", tmp_path / "run", "--no-figures")
    assert "no more than the most frequent class alone" in said
    assert "no more than the most frequent" in typed("report", tmp_path / "run", "--no-figures")


@pytest.mark.parametrize("verb", ["compare", "prune", "train", "score", "report", "check gradients"])
def test_help_fits_a_narrow_screen(verb):
    done = CliRunner().invoke(app, [*verb.split(), "--help"], env={"COLUMNS": "80"})
    assert done.exit_code == 0
    assert "…" not in done.stdout.replace("compare … --keep", "")
    if verb == "compare":
        for strategy in BY.split(","):
            assert strategy in done.stdout


def test_no_difference_is_no_minus():
    assert difference("accuracy", -1e-9) == "+0.00"
    assert difference("matthews", -1e-9) == "+0.000"
    assert difference("accuracy", -0.0123) == "−1.23"
