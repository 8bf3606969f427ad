"""Files of the Greedy-Gnorm repository: read, written, and read again."""

import json
import zipfile

import pytest

from espalier.analysis.curves import Curve
from espalier.analysis.results import Results
from espalier.core.errors import FolderError, FormatError, UnsupportedError
from espalier.io.paths import file_safe
from espalier.reproductions.greedy_gnorm.published import (
    Shape,
    method_file,
    method_label,
    read_published,
    write_published,
)
from espalier.reproductions.sources import read_sources

BERT = Shape((2, 2), parameters=10_000, parameters_per_unit=100)


def at(*removed):
    """Fractions of four heads."""
    return tuple(count / 4 for count in removed)


def shape_of(model):
    return {"BERT": BERT, "ALBERT": Shape((4,), uses=3)}.get(model)


def curve_file(folder, text, model="BERT", method="GreedyGnorm"):
    path = folder / f"pruned_heads_accuracy({model})basedon{method}.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def trials_file(folder, rows, name="BERTrandompruned_heads_data_2x3_1group.xlsx"):
    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = "Sheet1"
    for line in rows:
        book.active.append(line)
    book.save(folder / name)
    return folder / name


GOOD = "Pruned_Heads,Accuracy\r\n0,0.9\r\n2,0.8\r\n4,0.5\r\n"
TRIALS = [["Heads Pruned", "Trial_1", "Trial_2"], [0, 0.9, 0.9], [2, 0.7, 0.6], [4, 0.5, 0.5]]


def test_published_files(tmp_path):
    for method in ("AE", "AEinverse", "GreedyGnorm", "InverseGreedyGnorm", "Mine"):
        curve_file(tmp_path, GOOD, method=method)
    trials_file(tmp_path, TRIALS)
    order = {"layers": 2, "heads": 2, "order": [[1, 1], [0, 0], [0, 1], [1, 0]]}
    (tmp_path / "orders.json").write_text(json.dumps({"BERT": {"AE": order}, "OTHER": {}}))
    (found,) = read_published(tmp_path, shape_of)
    assert found.methods == ["gnorm", "gnorm:reverse", "entropy", "entropy:reverse", "Mine", "random:2"]
    assert found.curve("Mine") == Curve(at(0, 2, 4), (0.9, 0.8, 0.5))
    assert found.curve("random:2") == Curve.of_trials(at(0, 2, 4), ((0.9, 0.7, 0.5), (0.9, 0.6, 0.5)))
    assert found.orders == {"entropy": [(1, 1), (0, 0), (0, 1), (1, 0)]}
    assert found.cost(("gnorm", "one-shot"), 1.0).parameters == 9600
    assert found.cost(("gnorm", "one-shot"), 0.0).parameters == 10_000
    assert (found.layers, found.predictions) == ((2, 2), {})


def test_an_unknown_model(tmp_path):
    """Its last level is all that is known of its size."""
    curve_file(tmp_path, GOOD, model="OTHER")
    (found,) = read_published(tmp_path, shape_of)
    assert (found.units, found.layers, found.costs) == (4, (), {})
    assert found.curve("gnorm").removed == at(0, 2, 4)


def test_files_and_folders_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr("espalier.reproductions.greedy_gnorm.published.published_shape", shape_of)
    files = [curve_file(tmp_path, GOOD), curve_file(tmp_path, GOOD, method="AE")]
    assert [found.methods for found in read_sources([tmp_path])] == [["gnorm", "entropy"]]
    assert [found.methods for found in read_sources(files)] == [["gnorm", "entropy"]]
    (tmp_path / "notes").mkdir()
    for nothing in (tmp_path / "notes", tmp_path / "none"):
        with pytest.raises(FolderError) as error:
            read_sources([nothing])
        assert error.value.path == nothing


def test_uses_become_units_and_uses_again(tmp_path):
    curve_file(tmp_path, "Pruned_Heads,Accuracy\r\n0,0.9\r\n3,0.8\r\n12,0.5\r\n", model="ALBERT")
    (found,) = read_published(tmp_path, shape_of)
    assert found.curve("gnorm").removed == at(0, 1, 4)
    assert (found.units, found.uses) == (4, 3)
    write_published(found, tmp_path / "again")
    (file,) = (tmp_path / "again").iterdir()
    assert file.read_bytes() == next(tmp_path.glob("*.csv")).read_bytes()
    curve_file(tmp_path, "Pruned_Heads,Accuracy\n0,0.9\n1,0.8\n4,0.5\n", model="ALBERT")
    assert read_published(tmp_path, shape_of)[0].curve("gnorm").removed == at(0, 1, 4)


def test_groups_are_joined_unless_they_were(tmp_path):
    first = trials_file(tmp_path, TRIALS)
    more = [[*line, line[-1]] for line in TRIALS[1:]]
    second = "BERTrandompruned_heads_data_2x3_2group.xlsx"
    trials_file(tmp_path, [["Heads Pruned", "Trial_1", "Trial_2", "Trial_3"], *more], second)
    (found,) = read_published(tmp_path, shape_of)
    assert len(found.curve("random:5").trials) == 5
    trials_file(tmp_path, TRIALS, "BERTrandompruned_heads_data_2x3_concated.xlsx")
    assert read_published(tmp_path, shape_of)[0].methods == ["random:2"]
    assert read_published([first], shape_of)[0].methods == ["random:2"]
    for file in tmp_path.glob("*concated*"):
        file.unlink()
    trials_file(tmp_path, [TRIALS[0], TRIALS[1], TRIALS[3]], second)
    with pytest.raises(FormatError) as error:
        read_published(tmp_path, shape_of)
    assert error.value.path.name == second


def results(**more):
    return Results(
        **{
            "model": "BERT",
            "metric": "accuracy",
            "units": 4,
            "layers": (2, 2),
            "curves": {
                ("gnorm", "one-shot"): Curve(at(0, 1, 2), (0.9, 1 / 3, 0.1)),
                ("gnorm:static", "one-shot"): Curve(at(0, 4), (0.9, 0.5)),
                ("random:2", "one-shot"): Curve.of_trials(at(0, 4), ((0.9, 0.5), (0.9, 2 / 3))),
            },
            "orders": {"gnorm": [(0, 1), (1, 1)], "gnorm:static": [(0, 0)]},
            **more,
        }
    )


@pytest.mark.parametrize(
    ("model", "layers", "uses"),
    [
        ("BERT", (2, 2), 1),
        ("org/name: a*b?", (3, 1), 1),
        ("$(x) %41 ä\n", (4,), 12),
        ("..", (4,), 1),
    ],
)
def test_there_and_back(tmp_path, model, layers, uses):
    orders = {"gnorm": [(0, 1), (0, 0)], "gnorm:static": [(0, 2 if max(layers) > 2 else 0)]}
    mine = results(model=model, layers=layers, uses=uses, orders=orders)
    files = write_published(mine, tmp_path / "out")
    write_published(results(model="second"), tmp_path / "out")  # does not replace the first
    assert all(file.parent == tmp_path / "out" for file in files)
    assert not set('/\\:*?"<>|\n') & set("".join(file.name for file in files))
    found = {r.model: r for r in read_published(tmp_path / "out", shape_of)}
    assert set(found) == {model, "second"}
    for name in ("curves", "orders", "layers", "units", "uses"):
        assert getattr(found[model], name) == getattr(mine, name), name


def test_what_is_written_is_what_they_read(tmp_path):
    names = {file.name for file in write_published(results(), tmp_path)}
    assert names == {
        "pruned_heads_accuracy(BERT)basedonGreedyGnorm.csv",
        "pruned_heads_accuracy(BERT)basedongnorm-static.csv",
        "BERTrandompruned_heads_data_2x2_1group.xlsx",
        "orders.json",
    }
    text = (tmp_path / "pruned_heads_accuracy(BERT)basedonGreedyGnorm.csv").read_bytes()
    assert text == b"Pruned_Heads,Accuracy\r\n0,0.9\r\n1,0.3333333333333333\r\n2,0.1\r\n"
    import openpyxl

    sheet = openpyxl.load_workbook(tmp_path / "BERTrandompruned_heads_data_2x2_1group.xlsx")["Sheet1"]
    assert [c.value for c in sheet[1]] == ["Heads Pruned", "Trial_1", "Trial_2"]
    assert [c.value for c in sheet[3]] == [4, 0.5, 2 / 3]


def test_only_one_shot_curves_and_orders_that_are_not_random_are_written(tmp_path):
    curves = results().curves | {("gnorm", "recovered"): Curve(at(0, 4), (0.9, 0.8))}
    orders = results().orders | {"random:2": [(0, 0)]}
    names = {file.name for file in write_published(results(curves=curves, orders=orders), tmp_path)}
    assert names == {file.name for file in write_published(results(), tmp_path / "plain")}
    (found,) = read_published(tmp_path, shape_of)
    assert found.curve("gnorm").values == (0.9, 1 / 3, 0.1)
    assert list(found.orders) == ["gnorm", "gnorm:static"]


def test_what_the_format_cannot_hold(tmp_path):
    levels = {"random:1": at(0, 4), "random:2": at(0, 2)}
    two = {(name, "one-shot"): Curve.of_trials(removed, [(0.9, 0.5)]) for name, removed in levels.items()}
    for wrong in ({"metric": "perplexity"}, {"target": "weights"}, {"curves": two}):
        with pytest.raises(UnsupportedError):
            write_published(results(**wrong), tmp_path)


def test_file_names():
    assert file_safe("XLM_ROBERTA") == "XLM_ROBERTA"
    assert file_safe("a/b\\c:d") == "a%2Fb%5Cc%3Ad"
    assert file_safe("") == "model"


@pytest.mark.parametrize(
    ("label", "file"),
    [
        ("gnorm:static", "gnorm-static"),
        ("taylor:step=4:reverse", "taylor-step=4-reverse"),
        ("my-own", "my-own"),
        ("my-own:static", "my-own-static"),
        ("too-static", "too%2Dstatic"),
        ("./mine.py:greedy", ".%2Fmine.py%3Agreedy"),
    ],
)
def test_methods_name_files_that_can_be_read_back(label, file):
    assert method_file(label) == file
    assert method_label(file) == label


def test_older_files_name_a_method_with_percent_signs():
    assert method_label("gnorm%3Astatic") == "gnorm:static"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Pruned_Heads,Accuracy\r\n",
        "Heads,Acc\r\n0,0.9\r\n",
        "Pruned_Heads,Accuracy\r\n0,0.9\r\n1,high\r\n",
        "Pruned_Heads,Accuracy\r\n0,0.9\r\n1,nan\r\n",
        "Pruned_Heads,Accuracy\r\n0,90.1\r\n",
        "Pruned_Heads,Accuracy\r\n0,0.9\r\n1.5,0.8\r\n",
        "Pruned_Heads,Accuracy\r\n0,0.9\r\n1\r\n",
        "Pruned_Heads,Accuracy\r\n1,0.9\r\n",  # the unpruned model is missing
        "Pruned_Heads,Accuracy\r\n0,0.9\r\n2,0.9\r\n1,0.9\r\n",
        "Pruned_Heads,Accuracy\r\n0,0.9\r\n9,0.8\r\n",  # more heads than the model has
        b"\xff\xfe\x00\x01",
    ],
)
def test_bad_curve_files(tmp_path, text):
    path = curve_file(tmp_path, text)
    with pytest.raises(FormatError) as error:
        read_published(tmp_path, shape_of)
    assert error.value.path == path


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [["Heads Pruned", "Trial_1"]],
        [["Heads", "Trial_1"], [0, 0.9]],
        [["Heads Pruned", "A"], [0, 0.9]],
        [["Heads Pruned", "Trial_1"], [0, "much"]],
        [["Heads Pruned", "Trial_1"], [0, None]],
        [["Heads Pruned", "Trial_1"], ["none", 0.9]],
        [["Heads Pruned", "Trial_1"], [2, 0.9]],
    ],
)
def test_bad_trials_files(tmp_path, rows):
    path = trials_file(tmp_path, rows)
    with pytest.raises(FormatError) as error:
        read_published(tmp_path, shape_of)
    assert error.value.path == path


def test_not_a_workbook(tmp_path):
    path = tmp_path / "BERTrandompruned_heads_data_2x3_1group.xlsx"
    for content in (b"", b"Heads Pruned,Trial_1\n"):
        path.write_bytes(content)
        with pytest.raises(FormatError):
            read_published(tmp_path, shape_of)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(FormatError):
        read_published(tmp_path, shape_of)


@pytest.mark.parametrize(
    ("order", "layers"), [([[0, 0], [0, 0]], 2), ([[5, 0]], 2), ([], 2), ("none", 2), ([[2, 0]], 3)]
)
def test_bad_orders(tmp_path, order, layers):
    """A unit twice, one that does not exist, none, no list; and the order of a model of another shape."""
    curve_file(tmp_path, GOOD)
    entry = {"layers": layers, "heads": 2, "order": order}
    (tmp_path / "orders.json").write_text(json.dumps({"BERT": {"AE": entry}}))
    with pytest.raises(FormatError):
        read_published(tmp_path, shape_of)


def test_nothing_there(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(FolderError) as error:
            read_published(folder, shape_of)
        assert error.value.path == folder
