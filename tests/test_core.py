import json

import pytest
import torch

from espalier import EspalierError, Mask, Plan, Scores, lowest, per_layer


def plan():
    return Plan({"a/heads": [0, 1, 2, 5], "b/heads": []}, {"a/heads": 6, "b/heads": 4}, {"by": "hand"})


def test_a_plan_survives_the_disk(tmp_path):
    plan().save(tmp_path / "plan.json")
    raw = json.loads((tmp_path / "plan.json").read_text())
    assert raw["keep"] == {"a/heads": "0-2,5", "b/heads": ""}
    assert Plan.load(tmp_path / "plan.json") == plan()
    assert Plan.of(plan().mask(), by="hand") == plan()


def test_then_numbers_by_the_unpruned_model():
    later = Mask({"a/heads": torch.tensor([False, True, True, True])})
    twice = plan().then(later)
    assert twice.keep == {"a/heads": [1, 2, 5], "b/heads": []}
    assert twice.units == plan().units
    new = twice.then(Plan({"c/heads": [1]}, {"c/heads": 2}))
    assert new.keep["c/heads"] == [1]
    assert new.keep["a/heads"] == [1, 2, 5]
    with pytest.raises(EspalierError, match="4 units left, the later plan speaks of 6"):
        plan().then(Plan({"a/heads": [0]}, {"a/heads": 6}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.update(version=99), "version 99; this espalier reads up to 1"),
        (lambda raw: raw.pop("keep"), "not a plan"),
        (lambda raw: raw["keep"].update({"a/heads": "0-9"}), "damaged: unit 9 of 6"),
        (lambda raw: raw["keep"].update({"a/heads": "0-99999999999"}), "damaged"),
        (lambda raw: raw["keep"].update({"a/heads": "x"}), "damaged"),
        (lambda raw: raw["keep"].update({"a/heads": [0, 1]}), "damaged: units are written as"),
        (lambda raw: raw["keep"].pop("a/heads"), "stands only in one of"),
        (lambda raw: raw["keep"].update(z="0"), "damaged"),
    ],
)
def test_a_damaged_plan_says_so(tmp_path, change, message):
    raw = plan().to_dict()
    change(raw)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(EspalierError, match=message) as caught:
        Plan.load(path)
    assert str(path) in str(caught.value)


def test_what_is_not_json_is_not_a_plan(tmp_path):
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(EspalierError, match="not JSON"):
        Plan.load(tmp_path / "plan.json")
    with pytest.raises(EspalierError, match="cannot read the plan"):
        Plan.load(tmp_path / "none.json")


def test_a_mask_holds_zeros_and_ones():
    assert Mask({"a": torch.tensor([1.0, 0.0])})["a"].dtype == torch.bool
    with pytest.raises(EspalierError, match=r"lowest\(scores"):
        Mask({"a": torch.tensor([0.3, 0.7])})
    mask = Mask({"a": torch.tensor([True, False])})
    assert mask.kept == 0.5
    with pytest.raises(EspalierError, match="0 and 1"):
        mask["a"] = torch.tensor([2, 3])


def test_units_are_in_order_and_named_once():
    assert Plan({"a": [5, 1, 1]}, {"a": 6}).keep == {"a": [1, 5]}
    assert Plan({"a": [5, 1]}, {"a": 6}).then(Mask({"a": torch.tensor([True, False])})).keep == {"a": [1]}


def test_a_plan_is_of_whole_units():
    with pytest.raises(EspalierError, match="single weights"):
        Plan.of(Mask({"a": torch.ones(2, 2, dtype=torch.bool)}))


@pytest.mark.parametrize("keep", [0.0, 0.1, 1 / 3, 0.5, 0.99, 1.0])
def test_exactly_k_units_live_whatever_the_ties(keep):
    scores = Scores({"a": torch.zeros(7), "b": torch.tensor([0.0, 1.0, 1.0, -torch.inf]), "c": torch.ones(9)})
    mask = lowest(scores, keep)
    assert sum(int(m.sum()) for m in mask.values()) == round(keep * 20)
    again = lowest(scores, keep)
    assert all(torch.equal(mask[n], again[n]) for n in mask)


def test_heads_and_neurons_are_never_compared():
    scores = Scores(
        {
            "0/heads": torch.ones(4),
            "0/cross_heads": torch.zeros(4),
            "0/neurons": torch.full((10,), 99.0),
        }
    )
    mask = lowest(scores, 0.5)
    assert (int(mask["0/heads"].sum()), int(mask["0/cross_heads"].sum())) == (4, 0)
    assert int(mask["0/neurons"].sum()) == 5
    even = per_layer(scores, 0.5)
    assert [int(m.sum()) for m in even.values()] == [2, 2, 5]


def test_the_lowest_go_first_and_the_dead_stay_dead():
    scores = Scores({"a": torch.tensor([3.0, 1.0, 2.0]), "b": torch.tensor([0.5, 9.0, 0.1])})
    mask = lowest(scores, 0.5)
    assert mask["a"].tolist() == [True, False, True]
    assert mask["b"].tolist() == [False, True, False]
    dead = Mask({"a": torch.tensor([False, True, True]), "b": torch.ones(3, dtype=torch.bool)})
    mask = lowest(scores, 0.5, mask=dead)
    assert mask["a"].tolist() == [False, True, True]
    assert mask["b"].tolist() == [False, True, False]
    with pytest.raises(EspalierError, match="only 5 of 6"):
        lowest(scores, 1.0, mask=dead)
    with pytest.raises(EspalierError, match="not numbers"):
        lowest(Scores({"a": torch.tensor([torch.nan])}), 0.5)
    with pytest.raises(EspalierError, match="from 0 to 1"):
        lowest(scores, 72)
    with pytest.raises(EspalierError, match="no scores"):
        lowest(Scores(), 0.5)
