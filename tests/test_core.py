"""Masks, plans, batches and the logger."""

import json
import logging
import subprocess
import sys
import tracemalloc

import pytest
import torch

from espalier import Batches, Mask, Plan, Scores, remove_lowest
from espalier.core import distributed
from espalier.core.batches import model_loss, require_batches
from espalier.core.errors import DataError, FolderError, FormatError, InvalidValueError, UnknownNameError


def plan():
    return Plan({"a/heads": [0, 1, 2, 5], "b/heads": []}, {"a/heads": 6, "b/heads": 4}, {"by": "hand"})


def test_a_saved_plan_loads_equal(tmp_path):
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
    with pytest.raises(InvalidValueError) as error:
        plan().then(Plan({"a/heads": [0]}, {"a/heads": 6}))
    assert error.value.parameter == "later"


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.update(version=99),
        lambda raw: raw.pop("keep"),
        lambda raw: raw["keep"].update({"a/heads": "0-9"}),
        lambda raw: raw["keep"].update({"a/heads": "0-99999999999"}),
        lambda raw: raw["keep"].update({"a/heads": "x"}),
        lambda raw: raw["keep"].update({"a/heads": [0, 1]}),
        lambda raw: raw["keep"].pop("a/heads"),
        lambda raw: raw["keep"].update(z="0"),
        lambda raw: raw["units"].update({"a/heads": 10**9}),
        lambda raw: raw.update(origin=3),
    ],
)
def test_a_damaged_plan_is_an_error(tmp_path, change):
    raw = plan().to_dict()
    change(raw)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(FormatError) as error:
        Plan.load(path)
    assert error.value.path == path


@pytest.mark.parametrize(
    "runs", ["5-3", "1_0", "٣", "0,0", "3-4,1", "0-2,2", "-1", " 1", "1,", "+1", "0-1-2"]
)
def test_runs_that_do_not_rise_are_an_error(runs):
    """Each of these once meant something else than it says, or nothing at all."""
    with pytest.raises(FormatError):
        Plan.from_dict({"version": 1, "keep": {"a": runs}, "units": {"a": 12}})


@pytest.mark.parametrize(
    "units", [12.9, True, -5, "12", "1_2", None, [12], float("inf"), float("nan"), 10**9]
)
def test_units_are_whole_numbers(units):
    with pytest.raises(FormatError):
        Plan.from_dict({"version": 1, "keep": {"a": "0"}, "units": {"a": units}})


def test_a_short_plan_does_not_take_gigabytes():
    """Neither by repeating a run nor by many sites: what is listed is bounded before it is expanded."""
    many = 1 << 20
    tracemalloc.start()
    for keep, units in (
        ({"a": ",".join(["0-999999"] * 5000)}, {"a": many}),
        ({str(i): f"0-{many - 1}" for i in range(500)}, {str(i): many for i in range(500)}),
    ):
        with pytest.raises(FormatError):
            Plan.from_dict({"version": 1, "keep": keep, "units": units})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000_000
    large = {f"{i}/neurons": 53_248 for i in range(126)}  # the largest open model
    Plan.from_dict({"version": 1, "keep": dict.fromkeys(large, "7"), "units": large})


def test_a_file_that_is_no_plan_is_an_error(tmp_path):
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(FormatError):
        Plan.load(tmp_path / "plan.json")
    with pytest.raises(FolderError) as error:
        Plan.load(tmp_path / "none.json")
    assert error.value.path == tmp_path / "none.json"
    with pytest.raises(FolderError):
        plan().save(tmp_path / "none" / "plan.json")


def test_a_mask_holds_zeros_and_ones():
    assert Mask({"a": torch.tensor([1.0, 0.0])})["a"].dtype == torch.bool
    with pytest.raises(InvalidValueError):
        Mask({"a": torch.tensor([0.3, 0.7])})
    mask = Mask({"a": torch.tensor([True, False])})
    assert mask.kept == 0.5
    with pytest.raises(InvalidValueError):
        mask["a"] = torch.tensor([2, 3])


def test_a_mask_without_some_units():
    class Three:
        name, shape = "a/heads", (3,)

    assert Mask.without([Three()], {0: [1]})["a/heads"].tolist() == [True, False, True]
    assert Mask.without([Three()], {-1: [1]})["a/heads"].tolist() == [True, False, True]
    assert Mask.without([Three()], {"a/heads": [0, 2]})["a/heads"].tolist() == [False, True, False]
    for units in ({1: [0]}, {0: [3]}):
        with pytest.raises(InvalidValueError) as error:
            Mask.without([Three()], units)
        assert error.value.parameter == "units"
    with pytest.raises(UnknownNameError) as unknown:
        Mask.without([Three()], {"a/head": [0]})
    assert unknown.value.nearest == "a/heads"


def test_units_are_in_order_and_named_once():
    assert Plan({"a": [5, 1, 1]}, {"a": 6}).keep == {"a": [1, 5]}
    assert Plan({"a": [5, 1]}, {"a": 6}).then(Mask({"a": torch.tensor([True, False])})).keep == {"a": [1]}
    for keep, units in (({"a": [6]}, {"a": 6}), ({"b": [0]}, {"a": 6})):
        with pytest.raises(InvalidValueError) as error:
            Plan(keep, units)
        assert error.value.parameter == "keep"


def test_a_plan_is_of_whole_units():
    with pytest.raises(InvalidValueError):
        Plan.of(Mask({"a": torch.ones(2, 2, dtype=torch.bool)}))


def test_batches_need_a_loss_and_examples():
    with pytest.raises(DataError):
        model_loss(object(), {})
    with pytest.raises(DataError):
        require_batches(Batches(), "taylor")
    batches = Batches([{"x": torch.zeros(3)}, {"x": torch.zeros(2)}])
    assert batches.examples == 5
    assert batches.map_groups(lambda group: torch.tensor([len(group), group[0]])).tolist() == [[1, 0], [1, 1]]
    batches.groups = [[0, 1]]
    assert batches.map_groups(lambda group: torch.tensor(len(group))).tolist() == [2]


@pytest.mark.parametrize(
    ("before", "level"), [("logging", "ERROR"), ("espalier", "NOTSET"), ("espalier.core.terminal", "NOTSET")]
)
def test_a_level_that_the_user_chose_stays(before, level):
    lines = [f"import logging, {before}", f"logging.getLogger('espalier').setLevel(logging.{level})"]
    lines += ["import espalier.core.terminal", "print(logging.getLogger('espalier').level)"]
    done = subprocess.run(
        [sys.executable, "-c", "; ".join(lines)], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) == getattr(logging, level)


@pytest.mark.parametrize("remove", [0.0, 0.01, 0.5, 2 / 3, 0.9, 1.0])
def test_exactly_k_units_are_kept_whatever_the_ties(remove):
    scores = Scores({"a": torch.zeros(7), "b": torch.tensor([0.0, 1.0, 1.0, -torch.inf]), "c": torch.ones(9)})
    mask = remove_lowest(scores, remove)
    assert sum(int(m.sum()) for m in mask.values()) == round((1 - remove) * 20)
    again = remove_lowest(scores, remove)
    assert all(torch.equal(mask[n], again[n]) for n in mask)


def test_heads_and_neurons_are_never_compared():
    scores = Scores(
        {"0/heads": torch.ones(4), "0/cross_heads": torch.zeros(4), "0/neurons": torch.full((10,), 99.0)}
    )
    mask = remove_lowest(scores, 0.5)
    assert (int(mask["0/heads"].sum()), int(mask["0/cross_heads"].sum())) == (4, 0)
    assert int(mask["0/neurons"].sum()) == 5
    even = remove_lowest(scores, 0.5, scope="layer")
    assert [int(m.sum()) for m in even.values()] == [2, 2, 5]


def test_the_lowest_are_removed_first_and_removed_units_stay_removed():
    scores = Scores({"a": torch.tensor([3.0, 1.0, 2.0]), "b": torch.tensor([0.5, 9.0, 0.1])})
    mask = remove_lowest(scores, 0.5)
    assert mask["a"].tolist() == [True, False, True]
    assert mask["b"].tolist() == [False, True, False]
    before = Mask({"a": torch.tensor([False, True, True]), "b": torch.ones(3, dtype=torch.bool)})
    mask = remove_lowest(scores, 0.5, mask=before)
    assert mask["a"].tolist() == [False, True, True]
    assert mask["b"].tolist() == [False, True, False]
    nan = Scores({"a": torch.tensor([torch.nan])})
    for given, remove, removed in (
        (scores, 0, before),
        (nan, 0.5, None),
        (scores, 72, None),
        (Scores(), 0.5, None),
    ):
        with pytest.raises(InvalidValueError):
            remove_lowest(given, remove, mask=removed)


def test_work_is_shared_evenly_and_all_of_it(monkeypatch):
    weights = [7, 1, 9, 3, 3, 8, 2]
    monkeypatch.setattr(distributed, "world_size", lambda: 3)
    shares = []
    for number in range(3):
        monkeypatch.setattr(distributed, "rank", lambda number=number: number)
        shares.append(distributed.my_share(weights))
    assert sorted(n for share in shares for n in share) == list(range(7))
    loads = [sum(weights[n] for n in share) for share in shares]
    assert max(loads) - min(loads) <= 2


@pytest.mark.parametrize(
    "wrong",
    [
        [(1, 2)],
        [torch.zeros(3)],
        [{"input_ids": [1, 2]}],
        [{}],
        {"x": torch.zeros(1)},
        torch.zeros(2),
        3,
        "ab",
    ],
)
def test_batches_that_no_model_can_be_called_with(wrong):
    with pytest.raises(DataError):
        Batches(wrong)
