"""Budgets: the exact choice against brute force, the way down, what is asked for and what comes out."""

import itertools
import json
import logging
import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import toys

import espalier
from espalier import Batches, Mask, Scores, cost, criteria, load, sites
from espalier.core.errors import DataError, EspalierError, InvalidValueError, UnknownNameError
from espalier.core.progress import ignore
from espalier.engine.gate_gradients import batch_gradients
from espalier.experiment import budget_estimate
from espalier.experiment import latency_table as tables
from espalier.experiment import repair as repair_data
from espalier.experiment.budget import Budget, Currency, parse_budgets, search_units
from espalier.experiment.latency_table import FRACTIONS, LatencyTable, Shape, latency_table
from espalier.experiment.method import parse_method
from espalier.experiment.prune_budget import BudgetOptions, BudgetRun, prune_budgets
from espalier.pruning.path import REPAIRED_STAGE, STAGE, BudgetPath, stage_shares
from espalier.selection.budget import keep_within, rearrange, total_cost
from espalier.tasks import Examples
from espalier.testing.tiny import inputs, tiny

QUICK = dict(calibration=16, validation=40, test=40, max_length=32)


def random_scores(seed, **units):
    draw = torch.Generator().manual_seed(seed)
    names = {name.replace("_", "/"): n for name, n in units.items()}
    return Scores({name: torch.rand(n, generator=draw, dtype=torch.float64) for name, n in names.items()})


# ------------------------------------------------------------------------------------------ choosing


@pytest.mark.parametrize("seed", range(5))
def test_the_choice_is_the_best_of_all_masks(seed):
    scores = random_scores(seed, a0_heads=3, a0_neurons=5, a1_heads=2, a1_neurons=4)
    costs = {name: 3.0 if name.endswith("heads") else 1.0 for name in scores}
    for budget in (2.5, 6.0, 11.0):
        got = keep_within(scores, costs, budget, least_heads=0)
        flat = [(float(v), costs[n]) for n, values in scores.items() for v in values]
        best = max(
            sum(s for (s, _), keep in zip(flat, kept) if keep)
            for kept in itertools.product([0, 1], repeat=len(flat))
            if sum(c for (_, c), keep in zip(flat, kept) if keep) <= budget
        )
        assert total_cost(got, costs) <= budget
        assert sum(float(scores[n][m].sum()) for n, m in got.items()) == pytest.approx(best)


@pytest.mark.parametrize("change", [lambda s: -s, torch.zeros_like, lambda s: s - 0.5])
def test_a_budget_is_used_up_whatever_the_scores(change):
    """Units that score zero or less fill what others leave: the budget decides how much is removed."""
    scores = random_scores(3, a_heads=4, a_neurons=60, b_heads=4, b_neurons=60)
    scores = Scores({name: change(value) for name, value in scores.items()})
    costs = {name: 9.0 if name.endswith("heads") else 1.0 for name in scores}
    whole = sum(value.numel() * costs[name] for name, value in scores.items())
    for share in (0.3, 0.5, 0.8):
        mask = keep_within(scores, costs, share * whole)
        assert 0 <= share * whole - total_cost(mask, costs) < 1


def test_units_of_many_costs_are_taken_by_score_per_cost(monkeypatch):
    scores = random_scores(0, a_heads=4, a_neurons=30, b_heads=4, b_neurons=30)
    costs = {"a/heads": 5.0, "a/neurons": 1.0, "b/heads": 7.0, "b/neurons": 2.0}
    exact = keep_within(scores, costs, 60.0)
    monkeypatch.setattr("espalier.selection.budget.MOST_TRIALS", 0)
    quick = keep_within(scores, costs, 60.0)

    def worth(mask):
        return sum(float(scores[n][m].sum()) for n, m in mask.items())

    assert total_cost(quick, costs) <= 60
    assert worth(exact) >= worth(quick) > 0.95 * worth(exact)


def test_neurons_come_in_multiples_and_removed_units_stay_removed():
    scores = random_scores(1, a_heads=4, a_neurons=40, b_heads=4, b_neurons=36)
    costs = {name: 6.0 if name.endswith("heads") else 1.0 for name in scores}
    before = Mask({n: torch.ones(len(s), dtype=torch.bool) for n, s in scores.items()})
    before["a/neurons"][:5] = False
    got = keep_within(scores, costs, 60.0, mask=before, multiple=8)
    assert all(int(got[n].sum()) % 8 == 0 for n in got if n.endswith("neurons"))
    assert not got["a/neurons"][:5].any()
    assert total_cost(got, costs) <= 60
    assert keep_within(scores, costs, 1e9, mask=before)["a/neurons"].sum() == 35


def test_attention_is_not_emptied_by_low_scores():
    scores = random_scores(2, a_heads=8, a_neurons=80)
    scores["a/heads"] *= 1e-6
    costs = {"a/heads": 10.0, "a/neurons": 1.0}
    assert not keep_within(scores, costs, 80.0, least_heads=0)["a/heads"].any()
    assert int(keep_within(scores, costs, 80.0)["a/heads"].sum()) == 1  # a quarter of half of eight


def test_of_two_units_that_do_the_same_one_is_kept():
    """Units 0 and 1 are equal: to remove both costs four times as much as one."""
    grads = torch.tensor([[1.0, 1.0, 1.1, 0.1], [-1.0, -1.0, 1.1, 0.1]])
    mask = rearrange(Mask({"a/neurons": torch.tensor([False, False, True, True])}), {"a/neurons": grads})
    gone, both = (~mask["a/neurons"]).double(), (grads.T @ grads).double()
    best = min(
        float(v @ both @ v)
        for v in (torch.tensor(bits).double() for bits in itertools.product([0, 1], repeat=4))
        if v.sum() == 2
    )
    assert float(gone @ both @ gone) == pytest.approx(best)
    assert int(mask["a/neurons"].sum()) == 2


def test_scores_that_are_not_numbers():
    with pytest.raises(InvalidValueError):
        keep_within(Scores({"a/heads": torch.tensor([1.0, torch.nan])}), {"a/heads": 1.0}, 1.0)


# ------------------------------------------------------------------------------------------ the way down


def path_for(model, seen=None, **more):
    found = sites(model)

    def score(small, kept):
        if seen is not None:
            seen.append(cost(small).macs)
        return {site.name: site.fold(lambda w, _: w.abs()) for site in kept}

    return BudgetPath(model, found, score, {s.name: s.macs_per_unit(128) for s in found}, **more)


def test_a_budget_has_the_same_mask_alone_and_among_others(bert):
    alone, among = path_for(bert), path_for(bert)
    shares = (0.8, 0.5, 0.3)
    family = {share: among.mask(share * among.whole) for share in (0.3, 0.8, 0.5)}
    for share in shares:
        mask = alone.mask(share * alone.whole)
        assert all(torch.equal(mask[n], family[share][n]) for n in mask)
        assert total_cost(mask, alone.costs) <= share * alone.whole
        assert cost(alone.cut(mask)).macs == total_cost(mask, alone.costs)


def test_units_are_scored_again_on_smaller_and_smaller_copies(bert):
    seen = []
    path = path_for(bert, seen)
    path.mask(0.5 * path.whole)
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == len(set(seen)) > 3
    once = path_for(bert, seen := [], stage=0)
    once.mask(0.3 * once.whole)
    assert len(seen) == 1


def test_what_is_left_is_repaired_before_it_is_scored_again(bert):
    """Every copy that is scored is repaired first; the mask is that of the repaired model's scores."""
    order, fitted = [], []

    def fit(small):
        order.append("fit")
        fitted.append(small)
        with torch.no_grad():
            for site in sites(small, "neurons"):
                site.module("write").weight.zero_()

    def score(small, kept):
        order.append("score")
        assert not fitted or small is fitted[-1]
        return {site.name: site.fold(lambda w, _: w.abs()) for site in kept}

    found = sites(bert, "heads", "neurons")
    costs = {s.name: s.macs_per_unit(128) for s in found}
    path = BudgetPath(bert, found, score, costs, fit=fit, stage=0.7)
    path.mask(0.4 * path.whole)
    assert order == ["score", "fit", "score", "fit", "score"]  # the unpruned model needs no repair
    assert all(s.module("write").weight.abs().sum() > 0 for s in sites(bert, "neurons"))


def test_masks_are_compared_on_the_copy_that_was_scored(bert):
    """A stage is repaired once, however many masks are looked ahead at."""
    fitted, compared = [], []

    def best(small, found, masks):
        compared.append(small)
        return len(masks) - 1

    def score(small, kept):
        return {site.name: site.fold(lambda w, _: w.abs()) for site in kept}

    found = sites(bert, "heads", "neurons")
    costs = {s.name: s.macs_per_unit(128) for s in found}
    path = BudgetPath(bert, found, score, costs, fit=fitted.append, best=best, lookahead=3, stage=0.7)
    for share in (0.6, 0.6, 0.4, 0.35):
        path.mask(share * path.whole)
    assert len(fitted) == len(path.waypoints) - 1
    assert {id(one) for one in compared} <= {id(one) for one in (bert, *fitted)}


@pytest.mark.parametrize("how", [{}, {"target": "neurons"}, {"target": "heads"}])
def test_a_budget_that_no_unit_fits_into_is_refused_before_anything_is_scored(given, how, monkeypatch):
    monkeypatch.setattr(BudgetPath, "_waypoint", lambda *a: pytest.fail("scored"))
    with pytest.raises(InvalidValueError) as caught:
        espalier.prune(*given, macs=1e-6, **how, **QUICK)
    assert caught.value.parameter == "macs"


def test_stages_are_repaired_where_a_repair_follows():
    session = SimpleNamespace(task=SimpleNamespace(kind="language"), calibration=[], max_length=8)
    session.sites = [SimpleNamespace(uncuttable="", target="heads", units=2)]

    def run(**given):
        return BudgetRun(session, parse_method("obs", "heads"), BudgetOptions(**given))

    assert run().repairs_stages
    assert run().stage == REPAIRED_STAGE
    for given in ({"repair": "none"}, {"repair_stages": False}):
        assert not run(**given).repairs_stages
        assert run(**given).stage == STAGE
    assert run(stage=0.5).stage == 0.5


def test_gradients_of_batches_are_means_of_those_of_examples(bert):
    given = {k: v for k, v in inputs(bert, batch=6).items() if torch.is_tensor(v)}
    given["input_ids"] = torch.randint(4, 60, given["input_ids"].shape, generator=torch.manual_seed(0))
    given["labels"], found = torch.arange(6) % 2, sites(bert)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    rows = [order[:4], order[4:]]
    data = Batches([{k: v[part] for k, v in given.items()} for part in rows], positions=rows)
    each, pairs = (batch_gradients(bert, found, data, size) for size in (1, 4))
    fisher, together = (criteria.load("fisher")(bert, found, data, batch=size) for size in (1, 4))
    for site in found:
        torch.testing.assert_close(each[site.name].square().mean(0), fisher[site.name])
        want = torch.stack([each[site.name][:4].mean(0), each[site.name][4:].mean(0)])
        torch.testing.assert_close(pairs[site.name], want)
        torch.testing.assert_close(together[site.name], want.square().mean(0))
    with pytest.raises(InvalidValueError):
        batch_gradients(bert, found, data, 0)


def test_a_path_rearranges_what_a_budget_keeps(bert):
    def gradients(model, found):
        """Units with neighbouring numbers do the same."""
        return {
            s.name: torch.arange(s.units // 2)[:, None].eq(torch.arange(s.units) // 2).double() for s in found
        }

    plain, other = path_for(bert, stage=0), path_for(bert, stage=0, gradients=gradients)
    masks = [path.mask(0.5 * path.whole) for path in (plain, other)]
    for name in masks[0]:
        assert masks[0][name].sum() == masks[1][name].sum()
    pairs = [sum(int((~m.view(-1, 2)).all(1).sum()) for m in mask.values()) for mask in masks]
    assert pairs[1] < pairs[0]


# ------------------------------------------------------------------------------------------ what is asked for


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"macs": 0.5}, [Budget("macs", 0.5)]),
        ({"speedup": "1.5,3,2"}, [Budget("speedup", 1.5), Budget("speedup", 2.0), Budget("speedup", 3.0)]),
        ({"macs": [0.25, 0.5]}, [Budget("macs", 0.5), Budget("macs", 0.25)]),
        ({"size": "40MB"}, [Budget("size", 40e6)]),
        ({"latency": "5ms", "macs": None}, [Budget("latency", 0.005)]),
        ({"size": "1.5 GiB"}, [Budget("size", 1.5 * 2**30)]),
        ({}, []),
    ],
)
def test_budgets_are_read(given, want):
    assert parse_budgets(given) == want


@pytest.mark.parametrize(
    "given",
    [
        {"speedup": 0.5},
        {"speedup": "fast"},
        {"macs": 1.5},
        {"macs": 0},
        {"params": -1},
        {"size": "40"},
        {"size": "40ms"},
        {"latency": "0ms"},
        {"latency": 5},
        {"macs": "nan"},
        {"macs": "0.5,0.5"},
        {"macs": 0.5, "params": 0.5},
    ],
)
def test_budgets_that_make_no_sense(given):
    with pytest.raises(InvalidValueError) as error:
        parse_budgets(given)
    assert error.value.parameter in given


def test_search_comes_from_above():
    asked = []

    def choose(units):
        asked.append(units)
        return Mask({"a": torch.arange(1000) < units})

    units, mask = search_units(choose, lambda m: float(m["a"].sum()), 1000.0, 420.0)
    assert min(asked) > 0.85 * 420
    assert 415 <= int(mask["a"].sum()) <= 420
    assert units <= 421


# ------------------------------------------------------------------------------------------ time


def test_a_table_adds_up_over_layers(bert):
    found = sites(bert)
    curves = {
        "encoder.layer.*/heads": [[0.0, 0.4], [0.25, 0.55], [0.5, 0.7]],
        "encoder.layer.*/neurons": [[0.0, 0.7], [0.25, 0.775]],
    }
    table = LatencyTable(1.0, curves)
    assert table.predict(found, Mask.ones(found)) == 1.0
    mask = Mask.ones(found)
    mask[found[0].name][3:] = False  # half of the heads of one of three layers
    assert table.predict(found, mask) == pytest.approx(1 - 0.3 / 3)
    assert table.costs(found)[found[0].name] == pytest.approx(0.6 / 18)
    assert table.costs(found)[found[1].name] == pytest.approx(0.3 / 120)


def test_a_table_is_measured_once(bert, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    count = []

    def times(models, batch, rounds):
        count.append(len(models))
        macs = torch.tensor([float(cost(m).macs) for m in models])
        return (1e6 + macs)[:, None].expand(-1, rounds).double()

    monkeypatch.setattr(tables, "time_rounds", times)
    found = sites(bert)
    first = latency_table(bert, found, Shape(1, 16))
    assert latency_table(bert, found, Shape(1, 16)) == first
    assert count == [1 + 2 * len(FRACTIONS)]
    latency_table(bert, found, Shape(2, 16))
    assert len(count) == 2
    file = next((tmp_path / "espalier/latency").glob("*.json"))
    file.write_text("{}")
    latency_table(bert, found, Shape(1, 16))
    latency_table(bert, found, Shape(2, 16))
    assert len(count) == 3
    mask = Mask.without(found, {1: range(20), 2: [0]})
    assert first.predict(found, mask) == pytest.approx(1e6 + total_cost(mask, macs_of(found)), rel=1e-6)


def macs_of(found):
    return {site.name: site.macs_per_unit(128) for site in found}


# ------------------------------------------------------------------------------------------ the verb


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.setattr("espalier.experiment.prune_budget.SECONDS", 0)  # as few rounds as possible
    model = toys.folder_with_model(tmp_path / "model")
    return str(model), str(toys.table_of(tmp_path / "data.tsv", n=240))


def test_half_the_macs(given, tmp_path):
    small = espalier.prune(*given, macs=0.5, folder=tmp_path / "small", **QUICK)
    assert small["budget"]["met"] is True
    assert small["after"]["macs"] <= 0.5 * small["before"]["macs"]
    assert small["target"] == "heads,neurons"
    assert 0.45 < small["budget"]["achieved"] <= 0.5
    assert {one["site"].rpartition("/")[2] for one in small["layers"]} == {"heads", "neurons"}
    assert all(one["kept"] % 8 == 0 for one in small["layers"] if one["site"].endswith("neurons"))
    assert small["repaired"]
    assert cost(load(tmp_path / "small")).macs == small["after"]["macs"]
    origin = json.loads((tmp_path / "small/plan.json").read_text())["origin"]
    assert origin["original"]["test"] == small["before"]["test"]["accuracy"]
    assert origin["budget"]["kind"] == "macs"
    # a second cut is compared with the first model
    smaller = espalier.prune(tmp_path / "small", given[1], macs=0.5, **QUICK)
    assert smaller["original"] == origin["original"]
    assert repr(small)


def test_a_language_model(monkeypatch):
    """Its score is the logarithm of the perplexity; labels of `kl` are drawn from its predictions."""
    monkeypatch.setattr("espalier.experiment.prune_budget.SECONDS", 0)
    session = toys.toy_session("gpt2", target="heads,neurons")
    method = parse_method("kl", "heads")
    ((small, facts),) = prune_budgets(session, method, [Budget("macs", 0.5)], BudgetOptions())
    before, after = (facts[when]["test"]["perplexity"] for when in ("before", "after"))
    assert facts["change"]["test"]["value"] == pytest.approx(math.log(before / after))
    assert cost(small).macs <= 0.5 * cost(session.model).macs
    assert facts["repaired"]


def test_a_family_from_one_scoring(given, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        BudgetPath,
        "_waypoint",
        lambda self, mask, real=BudgetPath._waypoint: calls.append(1) or real(self, mask),
    )
    made = espalier.prune(*given, macs="0.7,0.4", folder=tmp_path / "family", repair="none", **QUICK)
    assert [one["budget"]["asked"] for one in made["family"]] == ["0.7", "0.4"]
    together = len(calls)
    assert sorted(p.name for p in (tmp_path / "family").iterdir()) == ["macs-0.4", "macs-0.7"]
    calls.clear()
    alone = espalier.prune(*given, macs=0.4, repair="none", **QUICK)
    assert alone["layers"] == made["family"][1]["layers"]
    assert len(calls) == together


def test_a_killed_run_resumes(given, tmp_path, monkeypatch):
    """Stages that were scored and models that are saved are not made again; the file goes at the end."""
    calls, fails = [], [False, True]

    def repair(self, small, real=BudgetRun.repair):
        calls.append("repair")
        if fails and fails.pop(0):
            raise KeyboardInterrupt
        return real(self, small)

    def waypoint(self, mask, real=BudgetPath._waypoint):
        calls.append("stage")
        return real(self, mask)

    monkeypatch.setattr(BudgetRun, "repair", repair)
    monkeypatch.setattr(BudgetPath, "_waypoint", waypoint)
    how = dict(macs="0.8,0.6", folder=tmp_path / "family", **QUICK)
    with pytest.raises(KeyboardInterrupt):
        espalier.prune(*given, **how)
    kept = tmp_path / "family-budget.jsonl"
    assert kept.is_file()
    stages = calls.count("stage")
    assert stages > 1
    calls.clear()
    resumed = espalier.prune(*given, **how)
    assert calls == ["repair"]  # of the second model
    assert not kept.exists()
    calls.clear()
    again = espalier.prune(*given, **how | {"folder": tmp_path / "again"})
    assert calls.count("stage") == stages
    for one, other in zip(resumed["family"], again["family"]):
        assert one["layers"] == other["layers"]
        assert one["after"]["test"] == other["after"]["test"]
    kept = tmp_path / "other-budget.jsonl"
    kept.write_text('{"identity": "of another run"}\n{"kind": "stage", "key": 0, "value": {}}\n')
    calls.clear()
    espalier.prune(*given, **how | {"macs": 0.8, "folder": tmp_path / "other"})
    assert calls.count("stage") > 0


def test_a_killed_search_for_a_tolerance_resumes(given, tmp_path, monkeypatch):
    shares, fails = [], [False] * 3 + [True]

    def counted(self, path, currency, budget, real=BudgetRun.counted):
        shares.append(budget.value)
        if fails and fails.pop(0):
            raise KeyboardInterrupt
        return real(self, path, currency, budget)

    monkeypatch.setattr(BudgetRun, "counted", counted)
    how = dict(tolerance=0.99, repair="none", folder=tmp_path / "small", **QUICK)
    with pytest.raises(KeyboardInterrupt):
        espalier.prune(*given, **how)
    assert len(shares) == 4
    first = shares[:3]
    shares.clear()
    resumed = espalier.prune(*given, **how)
    assert not set(first) & set(shares)
    assert resumed["layers"] == espalier.prune(*given, **how | {"folder": None})["layers"]


def test_the_time_is_estimated_before_the_start(given, caplog):
    with caplog.at_level(logging.INFO, "espalier"):
        espalier.prune(*given, macs=0.6, repair="none", **QUICK)
    said = [r.getMessage() for r in caplog.records if "scoring takes about" in r.getMessage()]
    assert len(said) == 1


@pytest.mark.parametrize("lengths", [range(4, 128, 2), [8] * 30 + [120] * 10, [9, 60], [9]])
def test_the_time_is_that_of_all_lengths(lengths, monkeypatch):
    """Batches are ordered by length, and a token of a long text takes longer than one of a short text."""

    def took(call):
        return 5 + sum(
            batch["input_ids"].numel() * batch["input_ids"].shape[1] / 1e3 for batch in call.args[-1]
        )

    monkeypatch.setattr(budget_estimate, "_time", took)
    batches = Batches([{"input_ids": torch.ones(1024 // n, n, dtype=torch.long)} for n in lengths])
    given = dict(calibration_of=lambda name: batches, batches=lambda split: batches, arithmetic=nullcontext)
    session = SimpleNamespace(**given, model=None)
    how = dict(session=session, one_by_one=0, options=BudgetOptions(repair="none"), on_progress=ignore)
    how |= dict(repairs_stages=False)
    run, method = SimpleNamespace(**how), SimpleNamespace(criterion="", rescore=False)
    found = budget_estimate.estimate(run, method, Currency({}, 0.0, 1.0), [])
    scoring, repairing, measuring = found["seconds"].values()
    assert 0.95 < scoring / took(SimpleNamespace(args=[batches])) < 1.3
    assert repairing == 0
    assert measuring > 0.95 * took(SimpleNamespace(args=[[*batches, *batches]]))


def test_the_time_of_a_repair_is_that_of_all_blocks_and_examples(monkeypatch):
    """A pass of the repair takes a second a token; scoring and measuring are not asked for."""
    session = toys.toy_session(calibration=8, target="heads,neurons")
    monkeypatch.setattr(budget_estimate, "_time", lambda call: 2.0 + budget_estimate._tokens(call.args[-1]))
    tokens = budget_estimate._tokens(session.calibration)
    run = BudgetRun(session, parse_method("magnitude", "heads"), BudgetOptions())
    blocks = len({site.path for site in run.sites})
    assert blocks > 1
    more = min(8 * repair_data.MORE, len(session.task.train)) / 8
    assert more > 1
    assert budget_estimate._repairing(run, 0.5) == pytest.approx(blocks * (2 + more * tokens))
    assert budget_estimate._repairing(run, 0.5, calibration_only=True) == pytest.approx(blocks * (2 + tokens))
    plain = BudgetRun(session, parse_method("magnitude", "heads"), BudgetOptions(repair="bias"))
    assert budget_estimate._repairing(plain, 0.5) == pytest.approx(blocks * (2 + tokens))


@pytest.mark.parametrize("how", [{}, {"target": "layers", "repair": "refit"}, {"search": "sublayers"}])
def test_a_dry_run_prunes_and_writes_nothing(given, tmp_path, how):
    found = espalier.prune(*given, macs="0.7,0.5", folder=tmp_path / "small", dry_run=True, **how, **QUICK)
    assert found.model is None
    assert not (tmp_path / "small").exists()
    assert [(one["kind"], one["asked"], one["share"]) for one in found["budgets"]] == [
        ("macs", "0.7", pytest.approx(0.7)),
        ("macs", "0.5", pytest.approx(0.5)),
    ]
    assert (found["dry_run"], found["repairs"]) == (True, 2)
    assert found["stages"] > 1
    assert all(seconds > 0 for seconds in found["parts"].values())
    assert found["seconds"] == pytest.approx(sum(found["parts"].values()))
    assert repr(found)


@pytest.mark.parametrize(
    "how",
    [
        {"remove": 0.5},
        {"tolerance": 0.01, "method": "gnorm:scope=layer"},
        {"target": "weights", "remove": 0.5},
        {"target": "tokens", "remove": 0.5},
        {"target": "vocabulary"},
    ],
)
def test_dry_runs_are_for_budgets(given, how):
    with pytest.raises(InvalidValueError) as error:
        espalier.prune(*given, dry_run=True, **how)
    assert error.value.parameter == "dry_run"


@pytest.mark.parametrize(("how", "stages"), [({}, None), ({"search": "sublayers"}, 6)])
def test_progress_counts_stages_sublayers_and_batches(given, how, stages):
    seen = []
    found = espalier.prune(*given, macs=0.5, on_progress=seen.append, **how, **QUICK)
    assert all(now.done < now.total for now in seen if now.total)
    at = {}
    for now in seen:
        at.setdefault(now.stage, []).append((now.done, now.total))
    scored = list(dict.fromkeys(at["scoring"]))
    assert scored == [(number, scored[0][1]) for number in range(len(scored))]
    assert stages is None or scored[0][1] == stages
    assert [one for one in at["repairing"] if one[1]] == [(i, 6) for i in range(6)]
    assert len(found["repaired"]) == 6
    for split in ("validation", "test"):
        for what in ("the unpruned model", "the pruned model"):
            counts = at[f"evaluating {what} on {split} data"]
            assert counts == [(i, len(counts)) for i in range(len(counts))]


@pytest.mark.parametrize("few", [0, 4])
def test_the_stages_are_counted_before_they_are_scored(few):
    """Layers go one by one: each share is that of whole layers."""
    shares = stage_shares(0.5, 1 - 0.5 / few if few else 0.84, few)
    assert shares == pytest.approx([1, 0.75, 0.5] if few else [1, 0.84, 0.84**2, 0.84**3])
    assert stage_shares(0.5, 0.0) == [1.0]


def test_what_a_repair_warns_of_is_logged_once(given, caplog):
    with caplog.at_level(logging.INFO, "espalier"):
        espalier.prune(*given, macs="0.9,0.8", **QUICK | {"calibration": 1})
    said = [r for r in caplog.records if "calibration tokens" in r.getMessage()]
    assert len(said) == 1


def test_bytes_and_parameters(given):
    for budget in ({"params": 0.7}, {"size": "140kB"}):
        found = espalier.prune(*given, repair="none", **budget, **QUICK)
        assert found["budget"]["met"] is True
        assert found["after"]["parameters"] < found["before"]["parameters"]
    assert 4 * found["after"]["parameters"] <= 140e3


def test_a_speed_is_measured_and_corrected(given, tmp_path, monkeypatch):
    """Seconds are made up of MACs: the table says so for whole layers, the measurement adds a tenth."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def times(models, batch, rounds=10, warmup=2, more=1.0):
        seconds = [
            1.0 if i == 0 else 0.3 + 0.7 * more * cost(m).macs / cost(models[0]).macs
            for i, m in enumerate(models)
        ]
        return torch.tensor(seconds, dtype=torch.float64)[:, None].expand(-1, rounds)

    monkeypatch.setattr(tables, "time_rounds", times)
    monkeypatch.setattr(
        "espalier.experiment.prune_budget.time_rounds", lambda *a, **k: times(*a, **k, more=1.1)
    )
    found = espalier.prune(*given, speedup=1.5, repair="none", **QUICK)
    assert found["budget"]["met"] is True
    assert found["speedup"] == pytest.approx(1.5, rel=0.05)
    assert found["latency"]["after"]["median"] == pytest.approx(1 / 1.5, rel=0.05)
    assert (found["latency"]["batch_size"], found["latency"]["max_length"]) == (1, 32)
    with pytest.raises(InvalidValueError) as error:
        espalier.prune(*given, speedup=4, **QUICK)
    assert error.value.parameter == "speedup"


def test_a_tolerance_is_met_on_validation_or_nothing_is_removed(given):
    loose = espalier.prune(*given, tolerance=0.99, repair="none", **QUICK)
    assert loose["budget"]["kind"] == "tolerance"
    assert loose["after"]["macs"] < 0.1 * loose["before"]["macs"]
    assert loose["change"]["validation"]["bound"] >= -1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"macs": 0.5, "remove": 0.5}, InvalidValueError),
        ({"macs": 0.5, "run": "x"}, InvalidValueError),
        ({"macs": 0.5, "epochs": 1}, InvalidValueError),
        ({"macs": 0.5, "tolerance": 0.1}, InvalidValueError),
        ({"macs": 0.5, "target": "weights"}, InvalidValueError),
        ({"macs": 0.5, "method": "gnorm"}, InvalidValueError),
        ({"macs": 0.5, "repair": "magic"}, UnknownNameError),
        ({"macs": 0.5, "multipel": 4}, UnknownNameError),
        ({"target": "heads,neurons"}, InvalidValueError),
        ({"speedup": 0.5}, InvalidValueError),
        ({"latency": "5"}, InvalidValueError),
        ({"params": 0.01}, InvalidValueError),
        ({"size": "1kB"}, InvalidValueError),
    ],
)
def test_bad_input_is_refused(given, options, error):
    with pytest.raises(error):
        espalier.prune(*given, **options, **QUICK)


def test_one_class_of_calibration_is_said(given, caplog, tmp_path):
    rows = (tmp_path / "data.tsv").read_text().splitlines()
    train = [rows[0], *(row[:-1] + "0" for row in rows[1:100])]
    (tmp_path / "train.tsv").write_text("\n".join(train) + "\n")
    (tmp_path / "rest.tsv").write_text("\n".join([rows[0], *rows[100:]]) + "\n")
    task = f"train={tmp_path / 'train.tsv'},test={tmp_path / 'rest.tsv'}"
    with caplog.at_level(logging.WARNING, "espalier"):
        espalier.prune(given[0], task, macs=0.5, repair="none", **QUICK)
    assert any("class" in record.getMessage() for record in caplog.records)


def test_without_labels_the_predictions_are_kept(caplog, monkeypatch):
    monkeypatch.setattr("espalier.experiment.prune_budget.SECONDS", 0)
    task, model = toys.task(), tiny("bert", "AutoModelForSequenceClassification")
    task = replace(task, train=Examples(task.train.texts))
    how = dict(macs=0.5, repair="none", tokenizer=toys.tokenizer(), calibration=16, max_length=32)
    with caplog.at_level(logging.WARNING, "espalier"):
        found = espalier.prune(model, task, **how)
    assert found["method"] == "kl"
    assert any("labels" in record.getMessage() for record in caplog.records)
    with pytest.raises(DataError):
        espalier.prune(model, task, "fisher", **how)


@pytest.mark.parametrize("options", [{}, {"method": "fisher"}, {"method": "magnitude"}])
def test_numbers_that_are_not_finite_end_before_anything_is_written(tmp_path, options):
    model = tiny("bert", "AutoModelForSequenceClassification")
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight[0, 0] = torch.nan
    how = dict(tokenizer=toys.tokenizer(), calibration=16, max_length=32, folder=tmp_path / "small")
    with pytest.raises(EspalierError):
        espalier.prune(model, toys.task(), macs=0.5, **options, **how)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["gates", "fisher:scope=layer", "fisher:step=4", "random:25"])
def test_a_budget_refuses_what_it_would_ignore(method):
    with pytest.raises(InvalidValueError) as error:
        espalier.prune("nowhere", "nothing", method, macs=0.5)
    assert error.value.parameter == "method"


def test_a_budget_that_the_model_meets_already():
    currency = Currency({"a/heads": 1.0}, 10.0, 20.0)
    for kind in ("size", "latency"):
        with pytest.raises(InvalidValueError) as error:
            currency.left(20.0, Budget(kind, 20.0))
        assert error.value.parameter == kind
    assert currency.left(15.0, Budget("size", 15.0)) == 5.0


def test_both_targets_in_any_order_need_a_budget():
    for target in ("heads,neurons", "neurons,heads"):
        with pytest.raises(InvalidValueError) as error:
            espalier.prune("nowhere", "nothing", target=target)
        assert error.value.parameter == "macs"
