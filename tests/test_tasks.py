"""Tasks: columns recognised, classes numbered, three splits that share no text."""

import gzip
import json

import pytest
import toys

from espalier import tasks
from espalier.core.errors import (
    DataError,
    FolderError,
    FormatError,
    InvalidValueError,
    UnknownNameError,
)
from espalier.tasks import Examples, catalogue, sources
from espalier.tasks.batches import batches_of, encode_blocks, max_tokens
from espalier.tasks.task import make_splits


def texts(task):
    return [set(split.keys()) for split in (task.train, task.validation, task.test)]


def test_one_table_is_split_by_a_seed(tmp_path):
    path = toys.table_of(tmp_path / "all.tsv", n=200)
    task = tasks.load(str(path))
    sizes = [len(task.train), len(task.validation), len(task.test)]
    assert sizes == [140, 30, 30]
    train, validation, test = texts(task)
    assert not (train & validation) | (train & test) | (validation & test)
    assert task.classes == ("0", "1")
    assert len(task.notes) == 1
    again, other = tasks.load(str(path)), tasks.load(str(path), seed=1)
    assert again == task
    assert other.test != task.test


def test_the_same_text_is_in_one_split_only(tmp_path):
    rows = [(f"sentence {i % 40}", i % 2) for i in range(120)]
    path = tmp_path / "all.csv"
    path.write_text("text,label\n" + "\n".join(f"{t},{y}" for t, y in rows))
    task = tasks.load(str(path))
    train, validation, test = texts(task)
    assert not (train & validation) | (train & test) | (validation & test)
    assert len(task.notes) > 1  # a split is made, and texts are left out


def test_a_folder_with_its_splits(tmp_path):
    for name, n, seed in (("train.tsv", 50, 1), ("dev.tsv", 20, 2), ("test.tsv", 10, 3)):
        toys.table_of(tmp_path / name, n, seed)
    task = tasks.load(str(tmp_path))
    assert [len(task.train), len(task.validation), len(task.test)] == [50, 20, 10]
    assert task.name == tmp_path.name


def test_a_single_held_out_split_is_halved(tmp_path):
    toys.table_of(tmp_path / "train.tsv", 50, 1)
    toys.table_of(tmp_path / "dev.tsv", 20, 2)
    (tmp_path / "test_unlabelled.tsv").write_text("index\tsentence\n0\tba be\n")
    task = tasks.load(str(tmp_path))
    assert [len(task.train), len(task.validation), len(task.test)] == [50, 10, 10]
    assert len(task.notes) == 1


def test_splits_by_name_and_every_format(tmp_path):
    import pandas

    frame = pandas.DataFrame({"premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"]})
    frame["label"] = ["yes", "no", "yes"]
    frame.to_parquet(tmp_path / "a.parquet")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        for i in range(3):
            print(json.dumps({"premise": f"g{i}", "hypothesis": "h", "label": "maybe"}), file=file)
    with gzip.open(tmp_path / "c.csv.gz", "wt") as file:
        file.write('premise,hypothesis,label\n"one, two",null,no\n')
    spec = ",".join(
        f"{split}={tmp_path / name}"
        for split, name in (
            ("train", "a.parquet"),
            ("validation", "b.jsonl.gz"),
            ("test", "c.csv.gz"),
        )
    )
    task = tasks.load(spec)
    assert task.classes == ("maybe", "no", "yes")
    assert task.train.labels == (2, 1, 2)
    assert task.test.texts == ("one, two",)
    assert task.test.pairs == ("null",)  # a word, not a missing value


def test_quotes_in_a_tsv_are_letters(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('sentence\tlabel\n"quoted start\t1\nplain\t0\nends" here\t1\n' + "x y\t0\nz w\t1\n" * 3)
    task = tasks.load(str(path))
    found = {text for split in texts(task) for text, _ in split}
    assert {'"quoted start', 'ends" here'} <= found


def test_scores_make_a_regression_task(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("sentence1,sentence2,score\n" + "".join(f"a{i},b{i},{i / 4}\n" for i in range(20)))
    task = tasks.load(str(path))
    assert (task.kind, task.metric, task.classes) == ("regression", "spearman", ())


def test_text_alone_is_a_language_task(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("\n".join(["the same line"] * 10 + [f"line {i}" for i in range(90)]))
    task = tasks.load(str(path))
    assert (task.kind, task.metric) == ("language", "perplexity")
    assert len(task.train) == 70  # cut where it stands: repeated lines stay
    assert task.train.texts[0] == "the same line"
    for seed in (0, 1):  # some of it has no gaps either
        assert list(task.draw_train(12, seed).texts) == ["the same line"] * 10 + ["line 0", "line 1"]
    assert len(task.draw_train(None, 0)) == len(task.draw_train(99, 0)) == 70


def test_the_demo_task_is_real_text():
    task = tasks.load("demo")
    assert sum(map(len, (task.train, task.validation, task.test))) > 8400
    assert task.classes == ("0", "1")
    train, validation, test = texts(task)
    assert not (train & validation) | (train & test) | (validation & test)


def test_a_python_file_of_the_users_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import toys\ndef task(seed):\n    return toys.task()\n")
    assert tasks.load(str(path)) == toys.task()
    assert tasks.load(toys.task()) == toys.task()


@pytest.mark.parametrize(
    ("name", "content", "wrong"),
    [
        ("a.csv", "one,two\nx,y\n", DataError),  # no column looks like a text
        ("a.csv", "", FormatError),
        ("a.csv", "text,label\n", DataError),
        ("a.jsonl", "{oops\n", FormatError),
        ("a.parquet", "no parquet", FormatError),
        ("a.xyz", "text", FormatError),
        ("a.csv.gz", "not gzip", FolderError),
        ("a.csv", "text,label\nx,1\n", DataError),  # too few for three splits
        ("a.csv", "text,label\n" + "x,\n" * 9, DataError),  # no labels
        ("a.csv", "text,label\nx,a\ny,0.5\n", DataError),  # words and fractions
    ],
)
def test_bad_files(tmp_path, name, content, wrong):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(wrong) as error:
        tasks.load(str(path))
    assert name in str(error.value) or wrong is DataError


def test_wrong_columns_and_folders(tmp_path):
    path = toys.table_of(tmp_path / "a.tsv")
    with pytest.raises(UnknownNameError) as error:
        tasks.load(str(path), text="sentense")
    assert (error.value.parameter, error.value.nearest) == ("text", "sentence")
    toys.table_of(tmp_path / "b.tsv")
    with pytest.raises(FolderError) as error:
        tasks.load(str(tmp_path))
    assert error.value.path == tmp_path
    with pytest.raises(FolderError):
        tasks.load(f"train={tmp_path}/nothing.tsv,test={path}")


def test_an_unknown_task():
    with pytest.raises(UnknownNameError) as error:
        tasks.load("demoo")
    assert (error.value.parameter, error.value.nearest) == ("task", "demo")
    with pytest.raises(InvalidValueError) as error:
        tasks.load(3)
    assert error.value.parameter == "task"


def glue_like(n, start, labelled):
    """A split as GLUE has it: classes with names, −1 where labels are missing."""
    import datasets

    names = datasets.ClassLabel(names=["negative", "positive"])
    types = {"sentence": datasets.Value("string"), "label": names, "idx": datasets.Value("int32")}
    rows = {
        "sentence": [f"s{start + i}" for i in range(n)],
        "label": [i % 2 if labelled else -1 for i in range(n)],
        "idx": list(range(n)),
    }
    return datasets.Dataset.from_dict(rows, features=datasets.Features(types))


def glue_splits():
    return {
        "train": glue_like(30, 0, True),
        "validation": glue_like(10, 100, True),
        "test": glue_like(5, 200, False),
    }


def test_datasets_of_the_hub(monkeypatch):
    """Splits without labels are left out, and classes have the names that the dataset gives them."""
    from espalier.tasks import hub

    asked = []
    monkeypatch.setattr(hub, "load_splits", lambda name: asked.append(name) or glue_splits())
    task = tasks.load("sst2")
    assert asked == ["nyu-mll/glue:sst2"]
    assert (task.name, task.metric) == ("sst2", "accuracy")
    assert [len(task.train), len(task.validation), len(task.test)] == [30, 5, 5]
    assert len(task.notes) == 2  # test is left out, validation is halved
    assert task.classes == ("negative", "positive")
    assert task.train.labels[:2] == (0, 1)


def test_datasets_in_memory():
    import datasets

    splits = datasets.DatasetDict(glue_splits())
    task = tasks.load(splits)
    assert [len(task.train), len(task.validation), len(task.test)] == [30, 5, 5]
    assert task.classes == ("negative", "positive")
    assert tasks.load(splits["train"]).classes == ("negative", "positive")
    assert len(tasks.load(splits["train"], seed=1).train) == 21
    with pytest.raises(UnknownNameError) as error:
        tasks.load(splits, label="lable")
    assert error.value.parameter == "label"
    with pytest.raises(DataError):
        tasks.load(datasets.DatasetDict({"unsupervised": splits["train"]}))
    with pytest.raises(DataError):
        tasks.load(splits["train"].to_iterable_dataset())


def test_a_task_is_added_by_a_file(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import toys\n"
        "from espalier.tasks.catalogue import NamedTask\n"
        "TASKS = {'toy': NamedTask('random words', lambda **options: toys.task())}\n"
    )
    monkeypatch.setattr(catalogue, "__path__", [*catalogue.__path__, str(tmp_path)])
    assert "toy" in tasks.names()
    assert tasks.descriptions()["toy"] == "random words"
    assert tasks.load("toy") == toys.task()


def test_every_named_task_is_described():
    found = sources.named_tasks()
    assert {"demo", "sst2"} <= set(found)
    assert all(task.about and callable(task.load) for task in found.values())


def test_every_split_needs_an_example():
    same = Examples(("a", "b"), None, (0, 1))
    with pytest.raises(DataError):
        make_splits({"train": same, "validation": same, "test": same}, seed=0, where="x")


def test_classes_are_numbered_as_the_model_numbers_them():
    """A checkpoint may number its classes in another order than the dataset; their names decide."""
    from espalier.experiment.model import OpenedModel
    from espalier.experiment.session import make_session
    from espalier.testing.tiny import tiny

    names = ("entailment", "neutral", "contradiction")
    splits = [Examples(("ba be", "bi bo", "du da"), None, (0, 1, 2))] * 3
    task = tasks.Task("toy", *splits, classes=names)
    model = tiny("bert", "AutoModelForSequenceClassification", num_labels=3)
    opened = OpenedModel("toy", model, toys.tokenizer())
    model.config.label2id = {"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2}
    made = make_session(opened, task)
    assert made.task.test.labels == (2, 1, 0)
    assert made.task.classes == ("contradiction", "neutral", "entailment")
    model.config.label2id = {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}
    assert make_session(opened, task).task.test.labels == (0, 1, 2)


@pytest.mark.parametrize(
    ("classes", "theirs", "labels"),
    [
        (("1", "2", "3"), ("LABEL_0", "LABEL_1", "LABEL_2"), (0, 1, 2)),  # stars
        (("1", "2", "3"), ("3", "2", "1"), (2, 1, 0)),  # names that are digits
        (("0", "2", "4"), tuple("abcde"), (0, 2, 4)),  # classes that do not occur
        (("1", "3", "5"), tuple("abcde"), (0, 2, 4)),
        (("-1", "0", "1"), ("bad", "so", "good"), (0, 1, 2)),
        (("Yes", "yes", "no"), ("yes", "no", "Yes"), (2, 0, 1)),  # case decides where it must
    ],
)
def test_numbers_of_classes(classes, theirs, labels):
    from espalier.experiment.classes import in_model_numbering
    from espalier.testing.tiny import tiny

    model = tiny("bert", "AutoModelForSequenceClassification", num_labels=len(theirs))
    model.config.label2id = {name: i for i, name in enumerate(theirs)}
    splits = [Examples(("ba be", "bi bo", "du da"), None, (0, 1, 2))] * 3
    found = in_model_numbering(tasks.Task("toy", *splits, classes=classes), model)
    assert found.test.labels == labels


@pytest.mark.parametrize("classes", [("0", "1", "2"), ("3", "7"), ("-1", "0", "1")])
def test_numbers_that_the_model_does_not_have(classes):
    from espalier.experiment.classes import in_model_numbering
    from espalier.testing.tiny import tiny

    count = 2 if len(classes) == 3 else 5
    model = tiny("bert", "AutoModelForSequenceClassification", num_labels=count)
    splits = [Examples(("ba be", "bi bo"), None, (0, 1))] * 3
    with pytest.raises(DataError):
        in_model_numbering(tasks.Task("toy", *splits, classes=classes), model)


def test_unlabelled_splits_and_rows_are_left_out(tmp_path):
    for name, n, label in (("train", 30, 1), ("dev", 20, 0), ("test", 10, -1)):
        rows = [f"{name} {i}\t{label * (i % 2) if label >= 0 else -1}" for i in range(n)]
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    task = tasks.load(str(tmp_path))
    assert task.kind == "classification"
    assert [len(task.train), len(task.validation), len(task.test)] == [30, 10, 10]
    assert len(task.notes) == 2


def test_classes_below_zero_are_classes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,sentiment\n" + "".join(f"t{i},{i % 3 - 1}\n" for i in range(60)))
    task = tasks.load(str(path))
    assert task.classes == ("-1", "0", "1")
    assert set(task.train.labels) == {0, 1, 2}


def test_a_table_without_labels_is_not_taken_for_running_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("review,stars\n" + "".join(f"text {i},{i % 5}\n" for i in range(60)))
    with pytest.raises(DataError):
        tasks.load(str(path))
    assert tasks.load(str(path), label="stars").classes == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize(
    "code",
    [
        "task = 3\n",
        "from espalier.tasks import Task\ndef task(seed):\n    return Task()\n",
        "from espalier.tasks import Task\ntask = Task('a', [1], [2], [3])\n",
    ],
)
def test_a_python_file_that_is_wrong(tmp_path, code):
    path = tmp_path / "mine.py"
    path.write_text(code)
    with pytest.raises(FormatError) as error:
        tasks.load(str(path))
    assert error.value.path.name == "mine.py"


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([1, 2, 3, 4, 5], ("1", "2", "3", "4", "5")),
        ([1, 2], ("1", "2")),
        ([1, 5], ("1", "5")),
        ([0, 1], ("0", "1")),
        ([0, 2], ("0", "2")),
        ([10, 9], ("9", "10")),
    ],
)
def test_whole_numbers_are_classes_where_they_occur(tmp_path, labels, classes):
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"t{i},{labels[i % len(labels)]}\n" for i in range(60)))
    task = tasks.load(str(path))
    assert (task.kind, task.classes) == ("classification", classes)
    truth = {text: labels[int(text[1:]) % len(labels)] for text in task.train.texts}
    assert [task.classes[i] for i in task.train.labels] == [str(truth[text]) for text in task.train.texts]
    shown = [note for note in task.notes if all(f"{name} is {i}" in note for i, name in enumerate(classes))]
    assert len(shown) == (classes != ("0", "1"))


@pytest.mark.parametrize("word", ["nan", "inf", "NaN", "-Infinity", "1_0", "٣"])
def test_a_word_that_python_reads_as_a_number_is_a_class(tmp_path, word):
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"t{i},{['bread', word][i % 2]}\n" for i in range(60)))
    task = tasks.load(str(path))
    assert (task.kind, set(task.classes)) == ("classification", {"bread", word})
    assert sum(map(len, (task.train, task.validation, task.test))) == 60


@pytest.mark.parametrize("number", ["1e+308", "007", "1.0", "-0", "+3"])
def test_a_number_among_words_is_a_class_as_it_is_written(tmp_path, number):
    """Also where the words are in another split; a split of -1 only still has no labels."""
    words = ["bread", number, "7"]
    rows = {"train": [words[i % 3] for i in range(60)], "dev": [number] * 30, "test": ["-1"] * 30}
    for split, labels in rows.items():
        lines = "".join(f"{split} {i},{label}\n" for i, label in enumerate(labels))
        (tmp_path / f"{split}.csv").write_text("text,label\n" + lines)
    task = tasks.load(str(tmp_path))
    assert (task.kind, task.classes) == ("classification", tuple(sorted(words)))
    for split, examples in (("train", task.train), ("dev", task.validation), ("dev", task.test)):
        for text, label in zip(examples.texts, examples.labels):
            name, at = text.split()
            assert (name, task.classes[int(label)]) == (split, rows[split][int(at)])


def test_a_json_number_among_words_is_a_class(tmp_path):
    path = tmp_path / "a.jsonl"
    labels = (1, 2.0, "bread")
    path.write_text("".join(json.dumps({"text": f"t{i}", "label": labels[i % 3]}) + "\n" for i in range(60)))
    assert tasks.load(str(path)).classes == ("1", "2.0", "bread")


def test_labels_that_cannot_be_used(tmp_path):
    path = tmp_path / "a.jsonl"
    for wrong in ("[0, 1]", "1e999", "9" * 400):
        path.write_text("".join(f'{{"text": "t{i}", "label": {wrong}}}\n' for i in range(9)))
        with pytest.raises(DataError):
            tasks.load(str(path))


@pytest.mark.parametrize("names", [("1", "2", "3"), ("2", "0", "1"), ("-1", "0", "1")])
def test_digits_as_names_of_classes_keep_their_numbers(names):
    import datasets

    types = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(names))}
    rows = {"text": [f"t{i}" for i in range(60)], "label": [i % 3 for i in range(59)] + [-1]}
    task = tasks.load(datasets.Dataset.from_dict(rows, features=datasets.Features(types)))
    assert task.classes == names
    for split in (task.train, task.validation, task.test):
        assert list(split.labels) == [int(text[1:]) % 3 for text in split.texts]
    assert sum(map(len, (task.train, task.validation, task.test))) == 59


def test_empty_texts_are_left_out_with_a_note(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "text,label\n" + "".join(f"{f't{i}' * min(1, i % 5)},{i % 2}\n" for i in range(60)) + '" ",1\n'
    )
    task = tasks.load(str(path))
    assert all(text.strip() for split in texts(task) for text, _ in split)
    assert any("13 " in note for note in task.notes)
    path.write_text("text,label\n" + ",1\n" * 60)
    with pytest.raises(DataError):
        tasks.load(str(path), text="text")


def test_the_column_that_is_taken_of_several_is_named(tmp_path):
    path = tmp_path / "a.csv"
    rows = "".join(f"{i},head {i},body {i},{i % 2}\n" for i in range(60))
    path.write_text("index,title,text,label\n" + rows)
    task = tasks.load(str(path))
    assert task.train.texts[0].startswith("body")
    assert [word in task.notes[0] for word in ("text", "title", "index")] == [True, True, False]
    assert len(tasks.load(str(path), text="text").notes) == len(task.notes) - 1


def test_a_table_without_labels(tmp_path):
    """It is running text only if someone says so: the model, the user, or the ending of a text file."""
    path = tmp_path / "a.csv"
    path.write_text("text\n" + "".join(f"line {i}\n" for i in range(60)))
    with pytest.raises(DataError) as error:
        tasks.load(str(path))
    assert "`label`" in str(error.value)
    assert tasks.load(str(path), running=True).kind == "language"
    assert tasks.load(str(path), kind="language").train.texts[0] == "line 0"
    with pytest.raises(InvalidValueError) as wrong:
        tasks.load(str(path), kind="poetry")
    assert wrong.value.parameter == "kind"
    path.write_text("text,label\n" + "".join(f"line {i},{i % 3}\n" for i in range(60)))
    assert tasks.load(str(path), running=True).kind == "classification"
    assert tasks.load(str(path), kind="regression").classes == ()
    assert tasks.load(str(path), kind="language").kind == "language"


@pytest.mark.parametrize("name", ["", " ", "x" * 300, "a\0b", f"{'x' * 300}.csv"])
def test_names_that_nothing_can_have(name):
    with pytest.raises(InvalidValueError) as error:
        tasks.load(name)
    assert error.value.parameter == "task"


@pytest.mark.parametrize("name", ["/dev/null", "no-such-folder/a.csv", "/no/such/folder"])
def test_what_is_neither_a_file_nor_a_folder(name):
    with pytest.raises(FolderError):
        tasks.load(name)


def test_an_empty_name_of_a_column(tmp_path):
    path = toys.table_of(tmp_path / "a.tsv")
    for column in ("text", "pair", "label"):
        with pytest.raises(UnknownNameError) as error:
            tasks.load(str(path), **{column: ""})
        assert error.value.parameter == column


def test_a_task_of_the_hub_without_the_hub():
    """It is not called unknown, and the answer does not take half a minute."""
    with pytest.raises(DataError) as error:
        tasks.load("sst2")
    assert "reached" in str(error.value)


def test_the_hub_is_asked_once(monkeypatch):
    import huggingface_hub
    from huggingface_hub import constants

    from espalier.io import hub
    from espalier.storage import resolve

    asked = []

    class Session:
        def head(self, *_, **__):
            asked.append(constants.HF_HUB_OFFLINE)
            raise OSError("not connected")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_session", Session)
    monkeypatch.setattr(hub, "_asked", [])
    for _ in range(3):
        with resolve.access("owner/name") as reachable:
            assert not reachable
            assert constants.is_offline_mode()
        assert not constants.is_offline_mode()
    assert asked == [False]
    with resolve.access(".") as reachable:
        assert reachable  # a folder needs no hub


@pytest.mark.parametrize("added", [False, True])
def test_running_text_is_tokenised_in_pieces(monkeypatch, added):
    """The tokens are those of the whole text, and no more is read than the blocks need."""
    from espalier.tasks import batches

    tokenizer, read = toys.tokenizer(), []
    if not added:
        tokenizer.backend_tokenizer.post_processor = None
    lines = [line for pair in zip(toys.sentences(40), ["", "  ba", "ba", " ba"] * 10) for line in pair]

    def stream():
        for line in lines:
            read.append(line)
            yield line

    class Stream(tuple):
        __iter__ = lambda self: stream()  # noqa: E731

    whole = tokenizer("\n".join(lines))["input_ids"]
    monkeypatch.setattr(batches, "PIECE", 50)
    found = encode_blocks(Examples(Stream(lines)), tokenizer, max_length=8)
    assert [i for row in found for i in row["input_ids"]] == whole[: len(whole) // 8 * 8]
    read.clear()
    assert len(encode_blocks(Examples(Stream(lines)), tokenizer, max_length=8, upto=2)) == 2
    assert len(read) < 20


def test_a_text_file_is_not_held_in_memory(tmp_path):
    import tracemalloc

    path = tmp_path / "a.txt"
    path.write_text("ba be bi bo bu\n" * 200_000)
    tokenizer = toys.tokenizer()
    tokenizer("ba")
    tracemalloc.start()
    try:
        task = tasks.load(str(path))
        blocks = batches_of(task.test, tokenizer, "language", max_length=8, upto=10)
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()
    assert (len(task.train), blocks.examples) == (140_000, 10)
    assert task.test.fingerprint() == Examples(("ba be bi bo bu",) * 30_000).fingerprint()
    assert task.train.sample(5, 0).texts == ("ba be bi bo bu",) * 5


def test_language_tasks_limit_every_split_by_its_own_option():
    session = toys.toy_session("gpt2", calibration=3, validation=5, test=7)
    assert [session.batches(split).examples for split in ("calibration", "validation", "test")] == [3, 5, 7]


def test_blocks_of_running_text():
    text, tokenizer = Examples(tuple(toys.sentences(20))), toys.tokenizer()
    rows = encode_blocks(text, tokenizer, max_length=8)
    assert {len(row["input_ids"]) for row in rows} == {8}
    batches = batches_of(text, tokenizer, "language", max_length=8, upto=3)
    assert batches.examples == 3
    assert all((batch["labels"] == batch["input_ids"]).all() for batch in batches)
    with pytest.raises(InvalidValueError) as error:
        encode_blocks(Examples(("ba be",)), tokenizer, max_length=8)
    assert error.value.parameter == "max_length"


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("bert", {}),
        ("roberta", {"pad_token_id": 1}),
        ("mpnet", {"pad_token_id": 1}),
        ("esm", {"pad_token_id": 1, "position_embedding_type": "absolute"}),
    ],
)
def test_the_longest_text_that_a_model_reads(kind, more):
    """So many tokens and no more have a position."""
    import torch

    from espalier.architectures.table import position_limit
    from espalier.testing.tiny import tiny

    model = tiny(kind, **more).eval()
    limit = position_limit(model)
    with torch.no_grad():
        model(input_ids=torch.full((1, limit), 5))
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=torch.full((1, limit + 1), 5))


def test_a_config_without_a_token_to_pad_with():
    from espalier.architectures.table import position_limit
    from espalier.testing.tiny import tiny

    model = tiny("roberta")
    model.config.pad_token_id = None
    assert position_limit(model) == 63


@pytest.mark.parametrize(("kind", "limit"), [("bert", 128), ("roberta", 127), ("gpt2", 128)])
def test_max_tokens(kind, limit):
    """RoBERTa's positions begin after the padding's."""
    from espalier.testing.tiny import tiny

    model, tokenizer = tiny(kind), toys.tokenizer()
    model.config.max_position_embeddings = 128
    assert max_tokens(model, tokenizer) == 64  # of the tokenizer
    tokenizer.model_max_length = 10**30
    assert max_tokens(model, tokenizer) == limit
