"""Recipes: the four published set-ups, their data, and files that are wrong."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from espalier.core.errors import (
    DataError,
    FolderError,
    FormatError,
    InvalidValueError,
    UnknownNameError,
    UnsupportedError,
)
from espalier.experiment.method import parse_methods
from espalier.reproductions import recipe as recipes
from espalier.reproductions.data import task_of
from espalier.reproductions.greedy_gnorm.published import published_shape

FOUR = ["albert-mnli", "bert-financial-news", "roberta-sentiment", "xlm-roberta-languages"]
SHAPES = {
    "BERT": (102_269_955, 196_800, 144, 1, 12),
    "ALBERT": (11_685_891, 196_800, 12, 12, 1),
    "ROBERTA": (355_361_794, 262_336, 384, 1, 24),
    "XLM_ROBERTA": (278_059_028, 196_800, 144, 1, 12),
}
MINE = """
about = "mine"
model = "./tuned"
dataset = "./data"
text = "sentence"

[honest]
calibration_split = "train"
calibration = 16
validation_split = "dev"
validation = 100
test_split = "test"
test = 100
methods = ["gnorm", "random:5"]
"""


def mine(tmp_path, text=MINE):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_there_are_four():
    assert recipes.names() == FOUR
    assert [recipes.load(name).name for name in FOUR] == FOUR


def test_rows_describe_every_recipe():
    assert [row["recipe"] for row in recipes.rows()] == recipes.names()
    assert all(row["about"] and row["model"] for row in recipes.rows())


@pytest.mark.parametrize("name", SHAPES)
def test_published_sizes_to_the_last_parameter(name):
    got = published_shape(name)
    found = (got.parameters, got.parameters_per_unit, got.units, got.uses, len(got.layers))
    assert found == SHAPES[name]


def test_a_model_that_is_not_published():
    assert published_shape("GPT") is None
    assert published_shape("bert") is None


@pytest.mark.parametrize("name", FOUR)
def test_published_megabytes_follow_from_the_shape(name):
    """The sizes in the paper's table are those of the model we count, before and after."""
    paper = recipes.load(name).published
    size = published_shape(paper.name)
    before = size.parameters * 4 / 2**20
    after = (size.parameters - paper.removed * size.parameters_per_unit) * 4 / 2**20
    assert paper.megabytes == (pytest.approx(before, abs=0.006), pytest.approx(after, abs=0.006))


@pytest.mark.parametrize("name", FOUR)
def test_published_curves_are_of_the_faithful_methods(name):
    recipe = recipes.load(name)
    paper, faithful = recipe.published, recipe.mode(faithful=True)
    assert set(paper.curves) == {s for s in faithful.methods if not s.startswith("random")}
    assert list(paper.levels) == sorted(set(paper.levels))
    assert paper.levels[0] == 0
    assert paper.levels[-1] == published_shape(paper.name).units
    chosen = paper.curves["gnorm:pooling=batch:objective=logits"][paper.levels.index(paper.removed)]
    assert (paper.curves["entropy:form=A" if "albert" in name else "entropy:form=C"][0], chosen) == (
        paper.accuracy
    )
    ends = {curve[-1] for curve in paper.curves.values()}
    # Without heads all are one model; XLM-R's was evaluated on two different sets of texts.
    assert len(ends) == (2 if name == "xlm-roberta-languages" else 1)


@pytest.mark.parametrize("name", FOUR)
def test_the_two_modes(name):
    recipe = recipes.load(name)
    faithful, honest = recipe.mode(faithful=True), recipe.mode()
    assert faithful.first
    assert not faithful.disjoint
    assert faithful.calibration_split == faithful.test_split
    assert honest.disjoint
    by = {s.label: s for s in parse_methods(faithful.methods, "heads")}
    greedy = by["gnorm:pooling=batch:objective=logits"]
    assert greedy.rescore
    assert greedy.options == {"pooling": "batch", "objective": "logits"}
    back = [s for s in by.values() if s.reverse]
    assert {s.criterion for s in back} == {"gnorm", "entropy"}
    assert {s.rescore for s in by.values() if s.criterion == "entropy"} == {False}
    for method in parse_methods(honest.methods, "heads"):
        if method.criterion == "gnorm":
            assert method.options == {"pooling": "example"}
    assert "gnorm:static:pooling=example" in honest.methods  # what the paper did not compare with


def test_what_differs_between_the_four():
    faithful = {name: recipes.load(name).mode(True) for name in FOUR}
    got = {
        name: (m.calibration, m.test, m.batch_size, m.test_split, m.methods[-1])
        for name, m in faithful.items()
    }
    assert got == {
        "bert-financial-news": (2329, 2329, 32, "train", "random:100:every=6"),
        "albert-mnli": (9815, 9815, 32, "validation_matched", "random:25:every=1"),
        "roberta-sentiment": (252, 1001, 4, "validation", "random:25:every=16"),
        "xlm-roberta-languages": (504, 3001, 8, "validation", "random:25:every=6"),
    }
    assert "entropy:form=A" in faithful["albert-mnli"].methods
    assert recipes.load("roberta-sentiment").labels == {"0": 0, "2": 1}
    assert [name for name, m in faithful.items() if m.score_dropped] == ["roberta-sentiment"]
    assert recipes.load("albert-mnli").task == "nyu-mll/glue:mnli"
    assert recipes.load("bert-financial-news").task == "hw2942/financial-news-sentiment"
    assert [n for n in FOUR if recipes.load(n).pair] == ["albert-mnli"]


@pytest.mark.parametrize("name", FOUR)
def test_the_shape_agrees_with_the_labels(name):
    recipe = recipes.load(name)
    if recipe.labels:
        assert set(recipe.labels.values()) == set(range(recipe.shape["num_labels"]))


def test_a_recipe_of_your_own(tmp_path):
    recipe = recipes.load(mine(tmp_path))
    assert (recipe.name, recipe.task, recipe.label, recipe.seed) == ("mine", "./data", "label", 0)
    assert recipe.honest.methods == ("gnorm", "random:5")
    assert recipe.published is None
    with pytest.raises(ValidationError):
        recipe.model = "other"
    with pytest.raises(UnsupportedError):
        recipe.mode(faithful=True)


def test_keys_of_older_recipes_are_read(tmp_path):
    old = MINE.replace("methods", "strategies").replace("about", "length = 64\nabout")
    recipe = recipes.load(mine(tmp_path, old + "entropy_calibration = 7\n"))
    assert recipe.max_length == 64
    assert recipe.honest.methods == ("gnorm", "random:5")
    assert recipe.honest.own_calibration == {"entropy": 7}


def test_a_python_file_in_a_recipe_is_not_run(tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('it was run')")
    text = MINE.replace('"gnorm"', f'"{tmp_path}/evil.py"')
    assert recipes.load(mine(tmp_path, text)).honest.methods[0].endswith("evil.py")


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("about", "abuot", "abuot"),
        ("calibration = 16", "calibraton = 16", "honest.calibraton"),
        ('model = "./tuned"', "", "model"),
        ("test = 100", 'test = "all"', "honest.test"),
        ("test = 100", 'test = "100"', "honest.test"),
        ("test = 100", "test = true", "honest.test"),
        ("test = 100", "test = -1", "honest.test"),
        ('["gnorm", "random:5"]', '"gnorm"', "honest.methods"),
        ('["gnorm", "random:5"]', "[5]", "honest.methods"),
        ('["gnorm", "random:5"]', "[]", "honest.methods"),
        ("[honest]", "labels = {a = 1.5}\n[honest]", "labels.a"),
        ("[honest]", "shape = {hidden_size = 8}\n[honest]", "model_type"),
        (MINE[MINE.index("[honest]") :], "honest = 1", "honest"),
        ('"dev"', '"train"\nfirst = true', "first"),
        ("[honest]", "[honest", "TOML"),
    ],
)
def test_wrong_recipes(tmp_path, old, new, names):
    """The error names the file and the key."""
    assert old in MINE
    with pytest.raises(FormatError) as error:
        recipes.load(mine(tmp_path, MINE.replace(old, new)))
    assert error.value.path.name == "mine.toml"
    assert names in str(error.value)


def test_wrong_published_numbers(tmp_path):
    more = '[published]\nname = "X"\nremoved = 1\naccuracy = [1, 0.5]\nmegabytes = [2, 1]\nlevels = [0, 1]\n'
    assert recipes.load(mine(tmp_path, MINE + more)).published.accuracy == (1.0, 0.5)
    for wrong in (more + "curves = { gnorm = [0.9] }\n", more.replace("[2, 1]", "[2]")):
        with pytest.raises(FormatError):
            recipes.load(mine(tmp_path, MINE + wrong))


def test_wrong_names():
    with pytest.raises(UnknownNameError) as error:
        recipes.load("albert-mnl")
    assert (error.value.parameter, error.value.nearest) == ("recipe", "albert-mnli")
    with pytest.raises(FolderError):
        recipes.load("./none.toml")


def data(tmp_path, n=40):
    """Two tables of sentences with labels 0, 1 and 2 in turn; five sentences are in both."""
    folder = tmp_path / "data"
    folder.mkdir()
    for split, start in (("train", 0), ("dev", n - 5)):
        rows = [f"text {i}\t{i % 3}" for i in range(start, start + n)]
        (folder / f"{split}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    return folder


def with_data(tmp_path, extra="", **changes):
    text = MINE.replace("./data", str(data(tmp_path))).replace('"test"', '"dev"')
    text = text.replace("validation = 100", "validation = 15").replace("test = 100", "test = 15")
    for old, new in changes.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    return recipes.load(mine(tmp_path, text.replace("[honest]", extra + "\n[honest]")))


def test_honest_data_is_disjoint(tmp_path):
    recipe = with_data(tmp_path, "labels = { 0 = 0, 2 = 1 }")
    task, own = task_of(recipe)
    keys = [set(split.keys()) for split in (task.train, task.validation, task.test)]
    assert not keys[0] & keys[1] | keys[0] & keys[2] | keys[1] & keys[2]
    assert (len(task.validation), task.classes, own) == (15, ("0", "1"), {})
    for text, label in zip(task.test.texts, task.test.labels):
        assert label == {0: 0, 2: 1}[int(text.split()[1]) % 3]  # label 1 is dropped
    assert task_of(recipe)[0] == task


def test_faithful_data_is_the_first_of_each_split(tmp_path):
    faithful = MINE[MINE.index("[honest]") :].replace("[honest]", "[faithful]").replace('"train"', '"dev"')
    faithful = faithful.replace('"test"', '"dev"').replace("validation = 100", "validation = 20")
    more = "first = true\nscore_dropped = true\nown_calibration = { entropy = 30 }\n"
    recipe = with_data(tmp_path, f"labels = {{ 0 = 0, 2 = 1 }}\n{faithful}{more}")
    task, own = task_of(recipe, faithful=True)
    assert task.train.texts == tuple(f"text {i}" for i in range(35, 51))  # dropped labels are scored
    assert task.train.labels is None
    kept = [i for i in range(35, 75) if i % 3 != 1]
    assert task.validation.texts == tuple(f"text {i}" for i in kept[:20])
    assert len(task.test) == len(kept)  # fewer than asked for
    assert len(own["entropy"]) == 30
    assert len(task.notes) == 2  # which recipe, and that texts are shared


def test_data_that_a_recipe_cannot_use(tmp_path):
    recipe = with_data(tmp_path)
    assert task_of(recipe)[0].classes == ("0", "1", "2")
    missing = recipe.model_copy(update={"honest": recipe.honest.model_copy(update={"test_split": "exam"})})
    with pytest.raises(UnknownNameError) as error:
        task_of(missing)
    assert error.value.name == "exam"
    greedy = recipe.model_copy(update={"honest": recipe.honest.model_copy(update={"validation": 40})})
    with pytest.raises(DataError):
        task_of(greedy)


def test_reading_a_recipe_imports_nothing_heavy():
    code = (
        "import sys\nfrom espalier.reproductions import recipe\nrecipe.load('albert-mnli')\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize("spelling", ["{}", ":{}", "{}:static", "::{}", "gnorm:{}", " {} "])
def test_a_recipe_runs_no_python_file_unless_it_is_trusted(tmp_path, monkeypatch, spelling):
    from espalier import compare
    from espalier.reproductions.sources import open_recipe

    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    path = mine(tmp_path, MINE.replace('"gnorm"', f'"{spelling.format("evil.py")}"'))
    with pytest.raises(InvalidValueError) as error:
        compare(recipe=str(path))
    assert error.value.parameter == "trust"
    assert not (tmp_path / "ran").exists()
    assert open_recipe(str(path), trust=True).methods


def test_a_recipe_that_nests_too_deep(tmp_path):
    (tmp_path / "deep.toml").write_text(f"a = {'[' * 100_000}")
    with pytest.raises(FormatError):
        recipes.load(tmp_path / "deep.toml")
