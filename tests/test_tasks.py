"""Tasks: columns recognised, answers numbered, three parts that share no text."""

import gzip
import json

import pytest
import toys

from espalier import EspalierError, tasks
from espalier.tasks import Examples
from espalier.tasks.splits import three_parts


def texts(task):
    return [set(part.keys()) for part in (task.train, task.validation, task.test)]


def test_one_table_is_split_by_a_seed(tmp_path):
    path = toys.table_of(tmp_path / "all.tsv", n=200)
    task = tasks.load(str(path))
    sizes = [len(task.train), len(task.validation), len(task.test)]
    assert sizes == [140, 30, 30]
    train, validation, test = texts(task)
    assert not (train & validation) | (train & test) | (validation & test)
    assert task.classes == ("0", "1")
    assert "split by seed 0" in task.notes[0]
    again, other = tasks.load(str(path)), tasks.load(str(path), seed=1)
    assert again == task
    assert other.test != task.test


def test_the_same_text_is_in_one_part_only(tmp_path):
    rows = [(f"sentence {i % 40}", i % 2) for i in range(120)]
    path = tmp_path / "all.csv"
    path.write_text("text,label\n" + "\n".join(f"{t},{y}" for t, y in rows))
    task = tasks.load(str(path))
    train, validation, test = texts(task)
    assert not (train & validation) | (train & test) | (validation & test)
    assert any("left out" in note for note in task.notes)


def test_a_folder_with_its_parts(tmp_path):
    for name, n, seed in (("train.tsv", 50, 1), ("dev.tsv", 20, 2), ("test.tsv", 10, 3)):
        toys.table_of(tmp_path / name, n, seed)
    task = tasks.load(str(tmp_path))
    assert [len(task.train), len(task.validation), len(task.test)] == [50, 20, 10]
    assert task.name == tmp_path.name


def test_a_single_held_out_part_is_halved(tmp_path):
    toys.table_of(tmp_path / "train.tsv", 50, 1)
    toys.table_of(tmp_path / "dev.tsv", 20, 2)
    (tmp_path / "test_unlabelled.tsv").write_text("index\tsentence\n0\tba be\n")
    task = tasks.load(str(tmp_path))
    assert [len(task.train), len(task.validation), len(task.test)] == [50, 10, 10]
    assert "halved" in task.notes[0]


def test_parts_by_name_and_every_format(tmp_path):
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
        f"{part}={tmp_path / name}"
        for part, name in (
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
    found = {text for part in texts(task) for text, _ in part}
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
    path.write_text("task = 3\n")
    with pytest.raises(EspalierError, match="defines no function task"):
        tasks.load(str(path))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "one,two\nx,y\n", "cannot tell which column"),
        ("a.csv", "", "not a readable csv file"),
        ("a.csv", "text,label\n", "has no rows"),
        ("a.jsonl", "{oops\n", "not a readable jsonl file"),
        ("a.parquet", "no parquet", "not a readable parquet file"),
        ("a.xyz", "text", "is no table"),
        ("a.csv.gz", "not gzip", "a.csv.gz"),
        ("a.csv", "text,label\nx,1\n", "cannot make 3 parts"),
        ("a.csv", "text,label\n" + "x,\n" * 9, "no part has answers"),
    ],
)
def test_bad_files_are_explained(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(EspalierError, match=says):
        tasks.load(str(path))


def test_wrong_columns_and_folders_are_explained(tmp_path):
    path = toys.table_of(tmp_path / "a.tsv")
    with pytest.raises(EspalierError, match="no column 'sentense', did you mean 'sentence'"):
        tasks.load(str(path), text="sentense")
    toys.table_of(tmp_path / "b.tsv")
    with pytest.raises(EspalierError, match="train=FILE,test=FILE"):
        tasks.load(str(tmp_path))
    with pytest.raises(EspalierError, match=r"cannot read|no task"):
        tasks.load(f"train={tmp_path}/nothing.tsv,test={path}")


def test_a_dataset_that_is_nowhere_is_explained():
    with pytest.raises(EspalierError, match=r"no task 'nobody/nothing'.*--task data\.csv"):
        tasks.load("nobody/nothing")


def test_hub_datasets_take_the_columns_and_parts_that_have_answers(monkeypatch):
    """What `datasets` gives for GLUE: classes with names, a test part without answers."""
    import datasets

    from espalier.tasks import hub

    features = datasets.Features(
        {
            "sentence": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["negative", "positive"]),
            "idx": datasets.Value("int32"),
        }
    )

    def part(n, start, answers):
        rows = {
            "sentence": [f"s{start + i}" for i in range(n)],
            "label": [i % 2 if answers else -1 for i in range(n)],
            "idx": list(range(n)),
        }
        return datasets.Dataset.from_dict(rows, features=features)

    given = {
        "train": part(30, 0, True),
        "validation": part(10, 100, True),
        "test": part(5, 200, False),
    }
    monkeypatch.setattr(hub, "_parts", lambda name: given)
    task = tasks.load("sst2")
    assert [len(task.train), len(task.validation), len(task.test)] == [30, 5, 5]
    assert any("test has no answers" in note for note in task.notes)
    assert task.classes == ("negative", "positive")
    assert task.train.labels[:2] == (0, 1)


def test_every_part_needs_something(tmp_path):
    same = Examples(("a", "b"), None, (0, 1))
    with pytest.raises(EspalierError, match="also in a later part"):
        three_parts({"train": same, "validation": same, "test": same}, seed=0, where="x")


def test_classes_are_numbered_as_the_model_numbers_them():
    """A checkpoint may count its classes in another order than the dataset; names tell."""
    from espalier.experiment.session import bench
    from espalier.testing.tiny import tiny

    names = ("entailment", "neutral", "contradiction")
    parts = [Examples(("ba be", "bi bo", "du da"), None, (0, 1, 2))] * 3
    task = tasks.Task("toy", *parts, classes=names)
    model = tiny("bert", "AutoModelForSequenceClassification", num_labels=3)
    model.config.label2id = {"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2}
    made = bench("toy", model, toys.tokenizer(), task)
    assert made.task.test.labels == (2, 1, 0)
    assert made.task.classes == ("contradiction", "neutral", "entailment")
    model.config.label2id = {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}
    assert bench("toy", model, toys.tokenizer(), task).task.test.labels == (0, 1, 2)


def test_unlabelled_parts_and_rows_are_left_out(tmp_path):
    for name, n, label in (("train", 30, 1), ("dev", 20, 0), ("test", 10, -1)):
        rows = [f"{name} {i}\t{label * (i % 2) if label >= 0 else -1}" for i in range(n)]
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    task = tasks.load(str(tmp_path))
    assert task.kind == "classification"
    assert [len(task.train), len(task.validation), len(task.test)] == [30, 10, 10]
    assert "test has no answers and is left out" in task.notes


def test_classes_below_zero_are_classes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,sentiment\n" + "".join(f"t{i},{i % 3 - 1}\n" for i in range(60)))
    task = tasks.load(str(path))
    assert task.classes == ("-1", "0", "1")
    assert set(task.train.labels) == {0, 1, 2}


def test_a_table_without_answers_is_not_taken_for_running_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("review,stars\n" + "".join(f"text {i},{i % 5}\n" for i in range(60)))
    with pytest.raises(EspalierError, match="Type --label COLUMN"):
        tasks.load(str(path))
    assert tasks.load(str(path), label="stars").classes == ("0", "1", "2", "3", "4")


def test_a_task_of_ones_own_that_is_wrong_is_explained(tmp_path):
    path = tmp_path / "mine.py"
    for code, says in (
        ("from espalier.tasks import Task\ndef task(seed):\n    return Task()\n", "TypeError"),
        (
            "from espalier.tasks import Task\ntask = Task('a', [1], [2], [3])\n",
            r"of Examples\(texts",
        ),
    ):
        path.write_text(code)
        with pytest.raises(EspalierError, match=says):
            tasks.load(str(path))
