"""What a model and its tokenizer must have before anything is measured with them."""

import json
import logging

import numpy as np
import pytest
import toys

import espalier
from espalier import tasks
from espalier.core.errors import DataError, FolderError, FormatError, InvalidValueError, UnsupportedError
from espalier.experiment.classes import check_numbering
from espalier.experiment.model import is_language_model, open_model
from espalier.reports.outcome import Outcome
from espalier.tasks import Examples, Task
from espalier.testing.tiny import tiny


def classifier(**config):
    return tiny("bert", "AutoModelForSequenceClassification", **config)


def regression_task(labels):
    return Task("toy", *[Examples(tuple(toys.sentences(12, i)), None, labels) for i in range(3)],
                kind="regression", metric="spearman")  # fmt: skip


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_folder_without_a_tokenizer(tmp_path, kind):
    """Transformers makes up a vocabulary of special tokens, and every text becomes unknown."""
    tiny(kind, "AutoModelForSequenceClassification").save_pretrained(tmp_path)
    with pytest.raises(FolderError) as error:
        open_model(tmp_path, toys.task())
    assert error.value.path == tmp_path
    assert open_model(tmp_path, toys.task(), tokenizer=toys.tokenizer()).tokenizer.pad_token == "[PAD]"
    toys.tokenizer().save_pretrained(tmp_path / "other")
    by_name = open_model(tmp_path, toys.task(), tokenizer=str(tmp_path / "other")).tokenizer
    assert by_name.get_vocab() == toys.tokenizer().get_vocab()
    with pytest.raises(InvalidValueError) as wrong:
        open_model(classifier(), toys.task(), tokenizer=str(tmp_path / "other"))
    assert wrong.value.parameter == "tokenizer"


@pytest.mark.parametrize("new_head", [None, 0])
def test_layers_without_weights_are_not_drawn(tmp_path, new_head):
    """Only a head may be new."""
    classifier(num_hidden_layers=2).save_pretrained(tmp_path)
    toys.tokenizer().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(FormatError):
        open_model(tmp_path, toys.task(), new_head=new_head)


def test_the_advice_to_run_a_pickle_is_not_passed_on(tmp_path):
    classifier().config.save_pretrained(tmp_path)
    toys.tokenizer().save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02cos\ngetcwd\n(tR.")
    with pytest.raises(FormatError) as error:
        open_model(tmp_path, toys.task())
    assert "weights_only" not in str(error.value)


@pytest.mark.parametrize(
    ("problem", "labels", "task"),
    [
        ("multi_label_classification", 2, toys.task()),
        ("regression", 2, toys.task()),
        ("multi_label_classification", 1, regression_task(tuple(range(12)))),
        ("single_label_classification", 2, regression_task(tuple(range(12)))),
    ],
)
def test_a_head_for_another_problem_is_refused_before_weights_are_read(tmp_path, problem, labels, task):
    model = classifier(num_labels=labels, problem_type=problem)
    with pytest.raises(UnsupportedError):
        open_model(model, task, tokenizer=toys.tokenizer())
    model.config.save_pretrained(tmp_path)  # no weights
    with pytest.raises(UnsupportedError):
        open_model(tmp_path, task, tokenizer=toys.tokenizer())


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_a_head_for_another_problem_is_replaced_by_training(tmp_path, problem):
    classifier(num_labels=2, problem_type=problem).save_pretrained(tmp_path)
    opened = open_model(tmp_path, toys.task(), tokenizer=toys.tokenizer(), new_head=0)
    assert opened.model.config.problem_type == "single_label_classification"
    task = regression_task(tuple(range(12)))
    opened = open_model(tmp_path, task, tokenizer=toys.tokenizer(), new_head=0)
    assert (opened.model.config.problem_type, opened.model.config.num_labels) == ("regression", 1)


@pytest.mark.parametrize("problem", [None, "regression"])
def test_regression_is_measured(problem):
    model = classifier(num_labels=1, problem_type=problem)
    task = regression_task(tuple(i / 2 for i in range(12)))
    found = espalier.evaluate(model, task, tokenizer=toys.tokenizer())
    assert -1 <= found["test"]["spearman"] <= 1
    assert found["test"]["metric"] == "spearman"


def test_a_file_with_one_class_is_refused_before_a_model_is_loaded(tmp_path, monkeypatch):
    file = tmp_path / "one.csv"
    file.write_text("text,label\n" + "".join(f"text number {i},1\n" for i in range(40)))
    assert not [note for note in tasks.load(file).notes if "classes" in note]
    monkeypatch.setattr(
        "espalier.experiment.trainer.open_model", lambda *args, **options: pytest.fail("loaded")
    )
    with pytest.raises(DataError):
        espalier.train("minilm", file, tmp_path / "tuned")
    assert not (tmp_path / "tuned").exists()


def test_a_metric_of_constant_truths_is_shown_as_undefined():
    model, task = classifier(num_labels=1), regression_task((2.5,) * 12)
    found = espalier.evaluate(model, task, tokenizer=toys.tokenizer())
    facts = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    for split in ("validation", "test"):
        shown = {name: facts[split][name] for name in ("spearman", "pearson", "low", "high")}
        assert set(shown.values()) == {None}
        assert "2.5" in facts[split]["undefined"]
    assert "undefined" in repr(found)
    with pytest.raises(DataError):
        espalier.compare(model, task, ["random:1"], tokenizer=toys.tokenizer())
    pruned = espalier.prune(model, task, target="weights", remove=0.5, tokenizer=toys.tokenizer())
    assert pruned["after"]["test"]["spearman"] is None
    assert "undefined" in repr(pruned)
    trained = espalier.train(model, task, epochs=1, tokenizer=toys.tokenizer())
    assert trained["epochs"][0]["validation spearman"] is None
    assert "undefined" in repr(trained)


def test_facts_are_always_valid_json():
    arrays = {"x": np.array([1.0, np.nan])}
    facts = {"a": float("nan"), 3: [float("inf"), (1, np.float32(2)), arrays], "d": {1}}
    text = json.dumps(Outcome(facts).to_dict(), allow_nan=False)
    assert json.loads(text) == {"a": None, "3": [None, [1, 2], {"x": [1, None]}], "d": [1]}


def no_padding(**tokens):
    made = toys.tokenizer()
    made.pad_token = None
    for name in ("eos_token", "unk_token", "bos_token"):
        setattr(made, name, tokens.get(name))
    return made


@pytest.mark.parametrize(
    ("tokens", "known", "wanted"),
    [
        ({"eos_token": "[SEP]"}, None, 2),
        ({"eos_token": "[SEP]"}, 7, 7),  # a classifier that reads the last token knows padding by this
        ({"unk_token": "[UNK]"}, None, 3),
    ],
)
def test_a_tokenizer_without_a_token_to_pad_with(tokens, known, wanted):
    model = tiny("gpt2", "AutoModelForSequenceClassification", pad_token_id=known)
    given = no_padding(**tokens)
    opened = open_model(model, toys.task(), tokenizer=given)
    assert opened.tokenizer.pad_token_id == opened.model.config.pad_token_id == wanted
    assert given.pad_token is None  # it is the caller's
    found = espalier.evaluate(model, toys.task(), tokenizer=given, max_length=16)
    alone = espalier.evaluate(model, toys.task(), tokenizer=given, max_length=16, calibration_batch_size=1)
    assert found["test"]["loss"] == pytest.approx(alone["test"]["loss"])


def test_nothing_to_pad_with():
    with pytest.raises(DataError):
        open_model(classifier(pad_token_id=None), toys.task(), tokenizer=no_padding())


@pytest.mark.parametrize(("classes", "refused"), [(("bad", "good"), True), (("0", "1"), False)])
def test_classes_that_are_predicted_as_each_other(caplog, classes, refused):
    """Numbers that were guessed from names cannot be trusted; the user's own are only doubted."""
    truth = np.arange(40) % 2
    task = Task("toy", *[Examples(("a", "b"), None, (0, 1))] * 3, classes=classes)
    logging.getLogger("espalier").propagate = True
    with caplog.at_level(logging.WARNING, "espalier"):
        check_numbering(task, classifier(), truth, truth)
        assert not caplog.records
        if refused:
            with pytest.raises(DataError):
                check_numbering(task, classifier(), truth, 1 - truth)
        else:
            check_numbering(task, classifier(), truth, 1 - truth)
            assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_the_model_says_whether_text_without_labels_is_running_text(tmp_path):
    lm = tiny("gpt2", "AutoModelForCausalLM")
    assert is_language_model(lm)
    assert not is_language_model(classifier())
    assert not is_language_model(tmp_path / "nothing")
    path = tmp_path / "a.csv"
    path.write_text("text\n" + "".join(f"{line}\n" for line in toys.sentences(200)))
    options = {"tokenizer": toys.tokenizer(), "max_length": 8}
    assert espalier.evaluate(lm, path, **options)["test"]["metric"] == "perplexity"
    with pytest.raises(DataError):
        espalier.evaluate(classifier(), path, **options)
    lm.save_pretrained(tmp_path / "lm")
    toys.tokenizer().save_pretrained(tmp_path / "lm")
    assert espalier.evaluate(tmp_path / "lm", path, max_length=8)["test"]["metric"] == "perplexity"


@pytest.mark.parametrize("name", ["", "x" * 300, "a\0b"])
def test_names_of_models_that_nothing_can_have(name):
    for call in (
        lambda: espalier.evaluate(name, toys.task()),
        lambda: espalier.train(name, toys.task()),
        lambda: espalier.prune(name, toys.task(), remove=0.5),
        lambda: espalier.recover(name, toys.task()),
        lambda: espalier.score(name, toys.task()),
        lambda: is_language_model(name) or open_model(name, toys.task()),
        lambda: espalier.measure(name),
        lambda: espalier.prune(classifier(), toys.task(), remove=0.5, folder=name),
    ):
        with pytest.raises((InvalidValueError, FolderError)):
            call()
