"""Budgets of whole layers, and masks that are compared by what they do."""

import copy

import pytest
import torch
import toys

import espalier
from espalier import Batches, Mask, Scores, cost, cut, load, masked, sites
from espalier.core.errors import InvalidValueError
from espalier.engine.passes import frozen_eval
from espalier.evaluation.cost import parameters
from espalier.experiment.budget import Budget, count_currency
from espalier.experiment.method import parse_method
from espalier.experiment.prune_budget import BudgetOptions, BudgetRun
from espalier.pruning import lookahead
from espalier.pruning.lookahead import divergence, race
from espalier.selection.budget import drop_within, total_cost

QUICK = dict(calibration=16, validation=40, test=40, max_length=32)
COSTS = {"a/attention": torch.tensor([1.0, 1.0, 1.0]), "a/ffn": torch.tensor([2.0, 2.0, 4.0])}


def test_the_lowest_score_for_its_cost_goes_first():
    scores = Scores(
        {"a/attention": torch.tensor([3.0, 0.9, 2.0]), "a/ffn": torch.tensor([1.0, 3.0, 9.0])}
    )  # for their costs: 3, 0.9, 2 and 0.5, 1.5, 2.25
    want = [(9, "a/ffn", 0), (8, "a/attention", 1), (6, "a/ffn", 1), (5, "a/attention", 2)]
    removed = set()
    for budget, name, unit in want:
        removed.add((name, unit))
        mask = drop_within(scores, COSTS, budget)
        assert {(n, int(u)) for n, m in mask.items() for u in (~m).nonzero()} == removed
        assert total_cost(mask, COSTS) == budget
    other = drop_within(scores, COSTS, 10.5, first=1)
    assert {(n, int(u)) for n, m in other.items() for u in (~m).nonzero()} == {("a/attention", 1)}
    kept = drop_within(Scores({"a/layers": torch.arange(3.0)}), {"a/layers": 1.0}, 0.0)
    assert kept["a/layers"].tolist() == [False, False, True]
    with pytest.raises(InvalidValueError):
        drop_within(Scores({"a/layers": torch.full((2,), torch.nan)}), {"a/layers": 1.0}, 1.0)


@pytest.mark.parametrize("target", ["layers", "attention", "ffn"])
def test_costs_of_layers_are_what_a_cut_saves(bert, target):
    cut(bert, Mask.without(sites(bert, "neurons"), {1: range(7)}), report=False)  # blocks that differ
    found = sites(bert, target)
    for kind, count in (("macs", lambda m: cost(m).macs), ("params", parameters)):
        currency = count_currency(bert, found, kind, 4)
        for unit in range(found[0].units):
            mask = Mask.without(found, {0: [unit]})
            small = cut(copy.deepcopy(bert), mask, report=False)
            assert currency.fixed + total_cost(mask, currency.costs) == count(small)
        assert currency.whole == count(bert)


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.setattr("espalier.experiment.prune_budget.SECONDS", 0)
    model = toys.folder_with_model(tmp_path / "model")
    return str(model), str(toys.table_of(tmp_path / "data.tsv", n=240))


def test_a_family_of_layers(given, tmp_path):
    made = espalier.prune(*given, target="layers", macs="0.7,0.4", folder=tmp_path / "family", **QUICK)
    for one, share in zip(made["family"], (0.7, 0.4)):
        (left,) = one["layers"]
        assert left["kept"] == int(share * left["units"])
        assert (one["budget"]["met"], one["method"]) == (True, "kl")
        assert one["repaired"]
        small = load(tmp_path / f"family/macs-{share}")
        assert cost(small).macs == one["after"]["macs"] <= share * one["before"]["macs"]
        assert small.config.num_hidden_layers == left["kept"]


def test_layers_are_scored_again_after_each():
    session = toys.toy_session("bert", "attention,ffn")
    run = BudgetRun(session, parse_method("kl", "ffn"), BudgetOptions(repair="none"))
    currency = run.currency("macs")
    path = run.path(currency)
    made = run.counted(path, currency, Budget("macs", 0.4))
    assert made.met
    removed = [sum(int((~m).sum()) for m in point.mask.values()) for point in path.waypoints]
    assert removed == list(range(len(removed)))
    last = path.waypoints[-1]
    small = path.cut(last.mask)
    for name, values in path.score(small, sites(small, "attention", "ffn")).items():
        torch.testing.assert_close(values, last.scores[name][last.mask[name]])


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"macs": 0.01, "target": "layers"}, "macs"),
        ({"macs": 0.5, "target": "layers,heads"}, "target"),
        ({"macs": 0.5, "target": "heads,neurons,layers"}, "target"),
        ({"macs": 0.5, "target": "layers,layers"}, "target"),
        ({"macs": 0.5, "target": "layers", "rearrange": True}, "rearrange"),
        ({"macs": 0.5, "target": "layers", "search": "sublayers"}, "search"),
        ({"macs": 0.5, "target": "layers", "stage": 0.5}, "stage"),
        ({"macs": 0.5, "lookahead": 0}, "lookahead"),
        ({"macs": 0.5, "recipe": "kprune", "lookahead": 2}, "lookahead"),
    ],
)
def test_what_makes_no_sense(given, options, parameter):
    with pytest.raises(InvalidValueError) as error:
        espalier.prune(*given, **options, **QUICK)
    assert error.value.parameter == parameter


# ------------------------------------------------------------------------------------------ lookahead


def data_for(model, batches=6, size=8):
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 60, (batches, size, 10), generator=draw)
    return Batches([{"input_ids": one, "attention_mask": torch.ones_like(one)} for one in ids])


def measured(model, found, mask, data):
    """The mean divergence, with nothing kept from pass to pass."""
    with torch.no_grad(), frozen_eval(model):
        wanted = [model(**batch).logits for batch in data]
        with masked(found, mask):
            each = [divergence(model(**batch).logits, w, batch) for batch, w in zip(data, wanted)]
    return float(torch.cat(each).mean())


@pytest.mark.parametrize("target", ["layers", "attention", "heads"])
def test_a_race_finds_what_changes_the_predictions_least(bert, target, monkeypatch):
    found, data = sites(bert, target), data_for(bert)
    with torch.no_grad():
        for p in bert.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=torch.manual_seed(p.numel())))
    place = [(0, unit) for unit in range(found[0].units)] if target != "heads" else [(0, 1), (1, 0), (2, 3)]
    masks = [Mask.without(found, {site: [unit]}) for site, unit in place]
    with torch.no_grad(), frozen_eval(bert):
        wanted = [bert(**batch).logits for batch in data]
    truth = [measured(bert, found, mask, data) for mask in masks]
    number, passes = race(bert, found, masks, data, wanted.__getitem__)
    assert number == truth.index(min(truth))
    monkeypatch.setattr(lookahead, "FEWEST", 10**9)
    seen = []
    monkeypatch.setattr(lookahead, "_survivors", lambda found: seen.append(found) or dict(found))
    number, every = race(bert, found, masks, data, wanted.__getitem__)
    assert (number, every) == (truth.index(min(truth)), len(masks) * len(data))
    assert passes <= every
    for candidate, each in seen[-1].items():
        assert float(torch.cat(each).mean()) == pytest.approx(truth[candidate], rel=1e-5)


def test_what_is_clearly_worse_is_not_run_to_the_end(bert):
    found, data = sites(bert, "layers"), data_for(bert)
    nothing = Mask.ones(found)
    with torch.no_grad(), frozen_eval(bert):
        wanted = [bert(**batch).logits for batch in data]
    worse = Mask.without(found, {0: [0, 1]})
    number, passes = race(bert, found, [worse, nothing], data, wanted.__getitem__)
    assert number == 1
    assert passes < 2 * len(data)


def test_a_path_takes_the_mask_that_is_best(given):
    """The second of the candidates of every stage, whatever the scores say."""
    for target, count in (("heads,neurons", 3), ("layers", 2)):
        session = toys.toy_session("bert", target)
        criterion = "kl" if target == "layers" else "fisher"
        how = BudgetOptions(lookahead=count)
        run = BudgetRun(session, parse_method(criterion, target.split(",")[0]), how)
        path = run.path(run.currency("macs"))
        seen = []
        path.best = lambda small, left, masks, seen=seen: seen.append(masks) or len(masks) - 1
        mask = path.mask(0.5 * path.whole)
        assert seen
        assert all(2 <= len(masks) <= count for masks in seen)
        assert total_cost(mask, path.costs) <= 0.5 * path.whole
        plain = BudgetRun(session, run.method, BudgetOptions()).path(run.currency("macs"))
        other = plain.mask(0.5 * plain.whole)
        assert any(not torch.equal(mask[name], other[name]) for name in mask)


def test_lookahead_by_the_verb(given):
    found = espalier.prune(*given, "fisher", macs=0.6, lookahead=3, repair="none", **QUICK)
    assert found["budget"]["met"] is True
