"""Model cards: what README.md says, that names cannot break it, and that a user's own stays."""

import json
import re

import pytest
import torch
import toys
import transformers
import yaml
from commands import ended
from huggingface_hub import ModelCard

import espalier
from espalier.core.call import CALL
from espalier.experiment.verb import describe_call
from espalier.io.output import add_file, write_folder
from espalier.reports.card import make_card, shorten_paths


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card")
    toys.folder_with_model(folder / "tuned")
    toys.table_of(folder / "t.tsv", n=60)
    return folder


@pytest.fixture(scope="module")
def pruned(place):
    data = dict(calibration=8, validation=9, test=9, max_length=16)
    return espalier.prune(
        place / "tuned", place / "t.tsv", "magnitude", remove=0.5, folder=place / "small", **data
    )


def front(folder):
    return yaml.safe_load((folder / "README.md").read_text("utf-8").split("---\n")[1])


def test_the_card_of_a_pruned_model(place, pruned):
    found = front(place / "small")
    assert found["library_name"] == "transformers"
    assert found["pipeline_tag"] == "text-classification"
    assert {"espalier", "pruned", "heads"} <= set(found["tags"])
    assert "base_model" not in found  # a folder of this machine is none
    (index,) = found["model-index"]
    (result,) = index["results"]
    test = pruned["after"]["test"]
    assert result["metrics"][0]["type"] == test["metric"]
    assert result["metrics"][0]["value"] == pytest.approx(test[test["metric"]])
    assert result["dataset"]["split"] == "test"
    text = (place / "small" / "README.md").read_text("utf-8")
    kept = [int(n) for n in re.findall(r"(\d+) of 6 ", text)]
    assert sum(kept) == round(18 * (1 - pruned["removed"]))
    assert "espalier.prune(" in text
    assert str(place) not in text
    assert "trust_remote_code=True" in text
    assert ModelCard.load(place / "small" / "README.md").data.eval_results


def test_the_card_says_how_to_load_it_and_it_does(place, pruned, monkeypatch):
    text = (place / "small" / "README.md").read_text("utf-8")
    code = re.search("## Load it\n\n```python\n(.*?)\n```", text, re.S)[1]
    monkeypatch.chdir(place)
    names: dict = {}
    exec(code.rpartition("\n")[0], names)
    given = names["tokenizer"](toys.sentences(2), return_tensors="pt", padding=True)
    with torch.no_grad():
        assert torch.equal(names["model"](**given).logits, pruned.model.eval()(**given).logits)


def test_recover_and_weights_have_cards(place, pruned):
    how = dict(validation=9, test=9, max_length=16, batch_size=16)
    espalier.recover(place / "small", place / "t.tsv", place / "again", epochs=1, **how)
    assert "trained again" in (place / "again" / "README.md").read_text("utf-8")
    sparse = dict(target="weights", remove=0.5, folder=place / "sparse", validation=9, test=9)
    espalier.prune(place / "tuned", place / "t.tsv", "magnitude", **sparse)
    text = (place / "sparse" / "README.md").read_text("utf-8")
    assert "█" in text
    assert "trust_remote_code" not in text


def test_files_that_are_called_as_a_dataset_are_not_that_dataset(place, pruned):
    facts = pruned.facts | {"task": "cola"}
    here, hub = (
        make_card(facts, pruned.model, None, "", place / "small", local=one) for one in (True, False)
    )
    assert ModelCard(hub).data.datasets == ["nyu-mll/glue"]
    assert ModelCard(here).data.datasets is None
    assert "nyu-mll" not in here


def test_records_of_the_source_are_followed(place, pruned):
    facts = pruned.facts
    live = transformers.AutoModelForSequenceClassification.from_pretrained(place / "tuned")
    live.config._name_or_path = "someone/something"
    text = make_card(facts, pruned.model, live, "espalier prune x", place / "small")
    assert ModelCard(text).data.base_model == "someone/something"
    source = place / "source"
    source.mkdir()
    (source / "README.md").write_text("---\nlicense: mit\nlanguage: de\nbase_model: a/b\n---\n# x\n")
    data = ModelCard(make_card(facts, pruned.model, source, "", place / "small")).data
    assert (data.license, data.language, data.base_model) == ("mit", "de", "a/b")
    (source / "README.md").write_text("---\n[broken\n---\n")
    (source / "training.json").write_text(json.dumps({"origin": {"model": "c/d"}}))
    text = make_card(facts, None, source, "", place / "small")  # of a family: the model is in its folder
    assert ModelCard(text).data.base_model == "c/d"
    assert ModelCard(text).data.pipeline_tag == "text-classification"
    assert "AutoModelForSequenceClassification" in text


def test_names_cannot_break_out(place, pruned):
    bad = "x|y\n# <script>alert(1)</script> ```\n[a](javascript:b) \x1b[31m: {yaml: [1"
    facts = pruned.facts | {"model": bad, "task": bad}
    text = make_card(facts, pruned.model, None, f"espalier prune '{bad}'", place / "small")
    found = ModelCard(text)
    assert found.data.eval_results[0].dataset_name.startswith("x|y")
    prose = re.sub(r"(?s)^(`{3,})\w*\n.*?\n\1$", "", text.split("---\n", 2)[2], flags=re.M)
    assert "\x1b" not in text
    assert not re.search(r"(?<!\\)<script", prose)
    assert "](javascript" not in prose
    assert not re.search("(?m)^# <", prose)


def test_paths_of_this_machine_are_not_passed_on():
    typed = (
        "espalier prune /home/me/tuned --task train=/a/b/t.tsv,test=/a/b/u.tsv --set corpus=/x/y.txt -o small"
    )
    assert shorten_paths(typed) == (
        "espalier prune tuned --task train=t.tsv,test=u.tsv --set corpus=y.txt -o small"
    )
    assert shorten_paths("espalier prune a/b --task ../t.tsv") == "espalier prune a/b --task ../t.tsv"


def test_a_call_is_described_without_objects():
    shown = describe_call(
        "prune", {"model": torch.nn.Linear(1, 1), "task": "demo", "remove": 0.5, "run": None}
    )
    assert shown == "espalier.prune(model=<Linear>, task='demo', remove=0.5)"


def test_a_new_model_never_has_the_card_of_an_earlier_one(tmp_path):
    def write():
        with write_folder(tmp_path / "out", "prune of tuned") as place:
            (place / "config.json").write_text('{"model_type": "bert"}')

    write()
    add_file(tmp_path / "out", "README.md", "about the first\n")
    write()  # and killed before its card is written
    assert not (tmp_path / "out/README.md").exists()
    (tmp_path / "out/README.md").write_text("my own words\n")
    write()
    assert (tmp_path / "out/README.md").read_text() == "my own words\n"


def test_a_new_model_never_has_the_pooling_of_an_earlier_one(tmp_path):
    def write(**files):
        with write_folder(tmp_path / "out", "prune of tuned") as place:
            for name, text in {"config.json": '{"model_type": "bert"}', **files}.items():
                (place / name).parent.mkdir(exist_ok=True)
                (place / name).write_text(text)

    pooling = {"modules.json": "[]", "1_Pooling/config.json": "{}", "sentence_bert_config.json": "{}"}
    write(**pooling, **{"tokenizer.json": "{}"})
    (tmp_path / "out/empty").mkdir()
    (tmp_path / "out/notes").mkdir()
    (tmp_path / "out/notes/mine.txt").write_text("mine")
    write()
    left = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("[!.]*")}
    assert left == {"config.json", "tokenizer.json", "empty", "notes", "notes/mine.txt"}


def test_a_card_of_the_user_stays(tmp_path, caplog):
    assert add_file(tmp_path, "README.md", "one\n")
    assert add_file(tmp_path, "README.md", "two\n")  # ours: replaced
    assert (tmp_path / "README.md").read_text().startswith("two\n")
    copied = tmp_path / "copy"
    copied.mkdir()
    (copied / "README.md").write_text((tmp_path / "README.md").read_text())
    assert add_file(copied, "README.md", "three\n")  # a copy is recognised as well
    with (copied / "README.md").open("a") as file:
        file.write("my own words\n")
    assert not add_file(copied, "README.md", "four\n")
    assert "my own words" in (copied / "README.md").read_text()
    assert any("README.md" in record.getMessage() for record in caplog.records)
    assert add_file(copied, "README.md", "five\n", overwrite=True)
    (copied / "README.md").write_bytes(b"\xff\xfe not text")
    assert not add_file(copied, "README.md", "six\n")


def test_a_second_pruning_renews_its_card_but_not_the_users(place):
    how = dict(remove=0.25, folder=place / "third", calibration=8, validation=9, test=9, max_length=16)
    espalier.prune(place / "tuned", place / "t.tsv", "magnitude", **how)
    first = (place / "third" / "README.md").read_text("utf-8")
    espalier.prune(place / "tuned", place / "t.tsv", "magnitude", **how | {"remove": 0.5})
    second = (place / "third" / "README.md").read_text("utf-8")
    assert first != second
    (place / "third" / "README.md").write_text("mine")
    espalier.prune(place / "tuned", place / "t.tsv", "magnitude", **how | {"remove": 0.5})
    assert (place / "third" / "README.md").read_text() == "mine"


def test_the_command_that_was_typed_is_noted_and_forgotten(place, capsys, monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["espalier", "prune", str(place / "tuned"), "--task", str(place / "t.tsv")]
    )
    seen = []
    monkeypatch.setattr(
        "espalier.api.prune_model", lambda *_, **__: seen.append(CALL.get()) or (None, {}, [])
    )
    ended(capsys, monkeypatch, "prune", place / "tuned", "--task", place / "t.tsv", "-o", "x y", code=0)
    assert seen == [f"espalier prune {place / 'tuned'} --task {place / 't.tsv'} -o 'x y'"]
    assert CALL.get() == ""
