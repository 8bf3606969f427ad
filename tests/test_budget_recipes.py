"""Published ways to meet a budget, on the one engine, each against a brute-force account on a tiny model."""

import copy
import itertools
from contextlib import nullcontext

import pytest
import torch
import toys

import espalier
from espalier import Batches, Mask, Scores, criteria, cut, sites
from espalier.core.errors import FormatError, InvalidValueError, UnknownNameError
from espalier.criteria.kcm import represent
from espalier.experiment.budget import Budget
from espalier.experiment.method import parse_method
from espalier.experiment.model import OpenedModel
from espalier.experiment.prune_budget import BudgetOptions, BudgetRun
from espalier.experiment.session import make_session
from espalier.pruning.least_squares import FITS, Sums
from espalier.pruning.repair import repair
from espalier.pruning.sublayers import SublayerPath
from espalier.reproductions import budget_recipe
from espalier.reproductions.budget_recipe import fill
from espalier.selection.budget import keep_within, total_cost
from espalier.testing.tiny import inputs, tiny

QUICK = dict(calibration=16, validation=40, test=40, max_length=32)
SHAPE = dict(num_hidden_layers=2, num_attention_heads=2, hidden_size=16, intermediate_size=4)


def model_and_data(examples=6):
    model = tiny("bert", "AutoModelForSequenceClassification", **SHAPE).eval()
    given = {k: v for k, v in inputs(model, batch=examples).items() if torch.is_tensor(v)}
    given["input_ids"] = torch.randint(4, 64, given["input_ids"].shape, generator=torch.manual_seed(0))
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    return model, Batches([{**given, "labels": torch.arange(examples) % 2}])


def session_of(model):
    """The tiny model on the toy task."""
    opened = OpenedModel("toy", model, toys.tokenizer())
    return make_session(opened, toys.task(), "heads,neurons", (), None, {"calibration": 6, "max_length": 16})


def example_gradients(model, data):
    """Gate by gate and example by example: the gradient of each one's loss, by a hook that multiplies."""
    found, out = sites(model), []
    single = [
        {k: v[i : i + 1] for k, v in batch.items()} for batch in data for i in range(len(batch["labels"]))
    ]
    for one in single:
        gates = {s.name: torch.ones(s.units, requires_grad=True) for s in found}
        hooks = [
            s.module("write").register_forward_pre_hook(
                lambda _, args, s=s, gates=gates: (args[0] * s.spread(gates[s.name]),)
            )
            for s in found
        ]
        model(**one).loss.backward()
        for hook in hooks:
            hook.remove()
        out.append({name: gate.grad.double() for name, gate in gates.items()})
    return {s.name: torch.stack([one[s.name] for one in out]) for s in found}


def test_kwon_is_the_best_of_all_masks_rearranged_as_published(monkeypatch):
    """Every mask is tried; then one unit after the other is appended, and the best one taken back."""
    monkeypatch.setattr("espalier.experiment.budget_choice.BATCH", 2)
    model, _ = model_and_data()
    session = session_of(model)
    options = fill("kwon", {}, {"macs": 0.5})
    assert (options.pop("method"), options.pop("calibration")) == ("fisher:static:batch=32", 2048)
    run = BudgetRun(session, parse_method("fisher:static:batch=2", "heads"), BudgetOptions(**options))
    currency = run.currency("macs")
    path = run.path(currency)
    got = path.mask(currency.left(0.5 * currency.whole, Budget("macs", 0.5)))

    order = torch.tensor([n for part in session.calibration.positions for n in part]).argsort()
    grads = {
        name: g[order].unflatten(0, (-1, 2)).mean(1)
        for name, g in example_gradients(model, session.calibration).items()
    }
    diagonal = {name: g.square().mean(0) for name, g in grads.items()}
    owner = [name for name, d in diagonal.items() for _ in d]
    every = torch.tensor(list(itertools.product([0.0, 1.0], repeat=len(owner)))).double()
    costs = every @ torch.tensor([currency.costs[name] for name in owner]).double()
    worth = (every @ torch.cat(list(diagonal.values()))).masked_fill(costs > 0.5 * currency.whole, -1)
    want = every[worth.argmax()]
    for name, mask in got.items():
        kept = sum(int(bit) for bit, other in zip(want, owner) if other == name)
        assert int(mask.sum()) == kept
        vectors, by_size = grads[name].T, diagonal[name].argsort().tolist()
        gone = by_size[: len(mask) - kept]
        for unit in by_size[len(mask) - kept :] if gone else ():
            gone.append(unit)
            rest = [vectors[[n for n in gone if n != one]].sum(0).square().sum() for one in gone]
            del gone[int(torch.stack(rest).argmin())]
        assert sorted(gone) == (~mask).nonzero().flatten().tolist()


def test_rescaling_is_least_squares_of_one_number_for_each_unit():
    torch.manual_seed(0)
    x, weight = torch.randn(40, 6).double(), torch.randn(6, 5).double()
    owners, d = torch.tensor([0, 0, 1, 1, 2, 2]), torch.randn(40, 5).double()
    sums = Sums.zeros(6, 5)
    sums.add(x, d)
    change, bias = FITS["scale"](sums, weight, owners, True, 1e-9)
    columns = [(x[:, owners == unit] @ weight[owners == unit]).flatten() for unit in range(3)]
    factors = torch.linalg.lstsq(torch.stack(columns, 1), d.flatten()).solution
    torch.testing.assert_close(change, factors[owners][:, None] * weight, rtol=1e-5, atol=1e-7)
    assert not bias.any()


def test_kcm_is_the_combination_without_negative_coefficients():
    from scipy.optimize import nnls

    torch.manual_seed(1)
    points = torch.randn(5, 3).double()
    got = represent(points, 1.0, tolerance=1e-12, rounds=20_000)
    squares = torch.cdist(points, points).square()
    kernel = (-squares / squares.mean()).exp()
    root = torch.linalg.cholesky(kernel).T.numpy()  # rootᵀ root = kernel
    want = [nnls(root, root[:, i])[0][i] for i in range(5)]
    assert got.tolist() == pytest.approx(want, abs=1e-3)
    # of two points that are the same, each is half of the other
    twice = represent(torch.cat([points, points[:1]]), 0.2, tolerance=1e-12, rounds=5000)
    assert twice[0] == pytest.approx(0.5, abs=0.02)
    assert twice[0] == pytest.approx(float(twice[-1]))
    assert twice[1] > 0.9


def test_kcm_with_a_column_far_from_all_others():
    torch.manual_seed(2)
    points = torch.randn(30, 4)
    points[7] *= 1000  # its kernel with the others is zero
    got = represent(points, 0.5)
    assert got.isfinite().all()
    assert float(got[7]) == pytest.approx(1, abs=0.2)


def test_kcm_reads_no_labels_and_needs_no_gradient():
    model, data = model_and_data()
    plain = Batches([{k: v for k, v in data[0].items() if k != "labels"}])
    with torch.inference_mode():
        scores = criteria.load("kcm")(model, sites(model), plain)
    read = {}
    for site in sites(model):
        with site.module("write").register_forward_pre_hook(lambda _, a, n=site.name: read.update({n: a[0]})):
            model(**plain[0])
    for site in sites(model):
        columns = site.module("write").weight.T
        own = represent(columns.detach(), 0.5).view(site.units, -1).mean(1).double()
        active = read[site.name].abs().double().mean((0, 1)).view(site.units, -1).mean(1)
        torch.testing.assert_close(
            scores[site.name], (own * active / active.norm()).detach(), rtol=1e-4, atol=1e-7
        )


def test_knowledge_is_the_divergence_and_the_change_of_the_output():
    """A gate moved by a little: second differences of the divergence; the output's change by hand."""
    model, data = model_and_data()
    model = model.double()
    scores = criteria.load("knowledge")(model, sites(model), data, temperature=2.0, representation=0.3)
    before = model(**data[0]).logits.detach()
    step, soft = 1e-3, (before / 2).softmax(-1)
    for site in sites(model):
        writer, width = site.module("write"), site.weight("write").shape[2]
        for unit in range(site.units):
            gate = torch.ones(site.units, dtype=torch.float64)
            gate[unit] -= step
            read = []

            def multiply(_, args, site=site, gate=gate, read=read):
                read.append(args[0])
                return (args[0] * site.spread(gate),)

            with writer.register_forward_pre_hook(multiply):
                after = model(**data[0]).logits.detach()
            diverged = 4 * (soft * (soft.log() - (after / 2).log_softmax(-1))).sum(-1).mean() / step**2
            own = site.index("write")[unit]
            each = read[0][..., own, None] * writer.weight.T[own]  # [examples, tokens, channels, width]
            change = each.detach().square().sum((-1, -2)).mean() / width
            assert float(scores[site.name][unit]) == pytest.approx(
                float(diverged + 0.3 * change), rel=2e-2, abs=1e-9
            )


@pytest.mark.parametrize("share", [0.6, 0.3])
def test_kprune_chooses_and_repairs_from_the_bottom(share):
    """The same by hand: score, search what is left, cut one sublayer, refit it, go on."""
    model, data = model_and_data()
    found = sites(model)
    costs = {s.name: float(s.macs_per_unit(128)) for s in found}
    score = criteria.load("knowledge")
    repaired = {}

    def fit(work, name):
        repaired["work"] = work
        repair(work, model, data, only=[name])

    path = SublayerPath(model, found, lambda m, s: score(m, s, data), costs, fit, multiple=1, least_heads=0)
    got = path.mask(share * path.whole)
    assert total_cost(got, costs) <= share * path.whole

    left, work, mask = share * path.whole, copy.deepcopy(model), Mask.ones(found)
    for number, site in enumerate(found):
        scores = score(work, sites(work)[number:], data)
        kept = keep_within(Scores(scores), costs, left, multiple=1, least_heads=0)[site.name]
        mask[site.name] = kept
        left -= costs[site.name] * int(kept.sum())
        work = cut(copy.deepcopy(model), mask, report=False)
        repair(work, model, data, only=[one.name for one in found[: number + 1]])
    assert all(torch.equal(got[name], mask[name]) for name in got)

    small = path.cut(got)
    repair(small, model, data)
    for a, b in zip(small.parameters(), repaired["work"].parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "deberta-v2", "gpt2", "llama"])
def test_kprune_is_the_same_whether_settled_blocks_run_again_or_not(kind, monkeypatch):
    """And two budgets of one path are those of two."""
    session = session_of(tiny(kind, "AutoModelForSequenceClassification").eval())
    method, options = parse_method("knowledge", "neurons"), BudgetOptions(search="sublayers", multiple=1)

    def masks(*paths):
        run = BudgetRun(session, method, options)
        currency = run.currency("macs")
        found = {number: run.path(currency) for number in set(paths)}
        shares = (0.7, 0.4)
        return [found[n].mask(share * (currency.whole - currency.fixed)) for n, share in zip(paths, shares)]

    runs, real = [], type(sites(session.model)[0].block).forward
    monkeypatch.setattr(
        type(sites(session.model)[0].block), "forward", lambda *a, **k: runs.append(1) or real(*a, **k)
    )
    got, fewer = masks(0, 0), len(runs)
    with monkeypatch.context() as patch:
        patch.setattr("espalier.experiment.budget_choice.settled_below", lambda *_: nullcontext())
        runs.clear()
        want = masks(0, 1)
    assert fewer < 0.8 * len(runs)
    for one, other in zip(got, want):
        assert all(torch.equal(one[name], other[name]) for name in one)


# ------------------------------------------------------------------------------------------ the verb


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.setattr("espalier.experiment.prune_budget.SECONDS", 0)
    return str(toys.folder_with_model(tmp_path / "model")), str(toys.table_of(tmp_path / "data.tsv", n=120))


@pytest.mark.parametrize("name", budget_recipe.names())
def test_every_recipe_meets_a_budget(given, name):
    small = espalier.prune(*given, macs=0.9, recipe=name, **QUICK)
    recipe = budget_recipe.load(name)
    assert small["budget"]["met"] is True
    assert (small["method"], small["repair"]) == (recipe.method, recipe.repair)
    assert small["after"]["macs"] <= 0.9 * small["before"]["macs"]
    assert small["target"] == (recipe.target or "heads,neurons")


def test_what_is_given_comes_before_the_recipe():
    how = fill("kwon", {"repair": "none", "target": "auto", "seed": 3, "method": None}, {"macs": 0.5})
    assert (how["repair"], how["method"], how["target"], how["seed"]) == (
        "none",
        "fisher:static:batch=32",
        "auto",
        3,
    )
    assert (how["rearrange"], how["calibration"]) == (True, 2048)
    assert fill("kwon", {"calibration": 16}, {"macs": 0.5})["calibration"] == 16


def test_recipes_that_make_no_sense(given, tmp_path):
    with pytest.raises(UnknownNameError) as error:
        espalier.prune(*given, macs=0.5, recipe="kwan")
    assert error.value.nearest == "kwon"
    for wrong, parameter in (
        (dict(recipe="kwon"), "recipe"),
        (dict(recipe="kprune", speedup=2), "search"),
        (dict(recipe="kcm", macs=0.1), "macs"),  # attention alone is more
        (dict(macs=0.5, search="somewhere"), "search"),
    ):
        with pytest.raises(InvalidValueError) as error:
            espalier.prune(*given, **wrong)
        assert error.value.parameter == parameter
    mine = tmp_path / "mine.toml"
    for text, kind in (("about = 1", FormatError), ('about = "a"\nmethod = "./mine.py"', InvalidValueError)):
        mine.write_text(text)
        with pytest.raises(kind):
            fill(str(mine), {}, {"macs": 0.5})


def test_rows_describe_every_recipe():
    assert [row["recipe"] for row in budget_recipe.rows()] == ["kcm", "kprune", "kwon"]
    assert all(row["about"] for row in budget_recipe.rows())


def test_a_recipe_may_leave_stages_as_they_are_cut(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('about = "mine"\nmethod = "obs"\nrepair_stages = false\nstage = 0.84\n')
    found = fill(str(path), {}, {"macs": 0.5})
    assert found["repair_stages"] is False
    options = {name: found[name] for name in ("repair_stages", "stage")}
    assert BudgetOptions(**options).repair_stages is False
