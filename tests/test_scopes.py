"""Choosing weights: exact counts, the best choice there is, and no dependence on ties."""

from itertools import combinations
from math import ceil

import pytest
import torch

from espalier import EspalierError, Mask, Scores, criteria, lowest, n_m, per_layer, per_row, sites
from espalier.selection.scopes import highest, smallest
from espalier.testing.tiny import tiny


def scores(*shapes, seed=0, values=None, axes=None):
    """With `values`, so few different numbers that ties are everywhere."""
    g = torch.Generator().manual_seed(seed)
    made = {
        f"{i}/m": torch.randn(shape, generator=g)
        if values is None
        else torch.randint(0, values, shape, generator=g).float()
        for i, shape in enumerate(shapes)
    }
    return Scores(made, dict.fromkeys(made, 1) if axes is None else axes)


def in_full_order(found, keep, mask=None):
    """The plain way: sort everything, earlier first among equals, the dead before all."""
    units = [
        (bool(mask[n].flatten()[i]) if mask else True, v, k, n, i)
        for k, n in enumerate(found)
        for i, v in enumerate(found[n].flatten().tolist())
    ]
    units.sort(key=lambda unit: (unit[0], unit[1], unit[2], unit[4]))
    out = {n: torch.ones(found[n].numel(), dtype=torch.bool) for n in found}
    for _, _, _, n, i in units[: len(units) - round(keep * len(units))]:
        out[n][i] = False
    return {n: out[n].view_as(found[n]) for n in found}


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.3, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("values", [None, 1, 2, 5])
def test_a_threshold_chooses_as_a_full_order_does(keep, values):
    for seed in range(3):
        found = scores((7, 9), (5, 4), (1, 30), seed=seed, values=values)
        for precision in (torch.float32, torch.float64, torch.bfloat16):
            low = Scores({n: s.to(precision) for n, s in found.items()})
            want = in_full_order(low, keep)
            got = lowest(low, keep)
            assert all(torch.equal(got[n], want[n]) for n in want)
        alive = Mask({n: s > -0.5 for n, s in scores((7, 9), (5, 4), (1, 30), seed=9).items()})
        if keep < 0.6:
            want = in_full_order(found, keep, alive)
            got = lowest(found, keep, mask=alive)
            assert all(torch.equal(got[n], want[n]) for n in want)
            assert not any((got[n] & ~alive[n]).any() for n in got)


def test_infinite_scores_mixed_precision_and_what_is_given_stay_as_they_are():
    found = Scores(
        {
            "a/m": torch.tensor([[-torch.inf, 0.1, torch.inf]]),
            "b/m": torch.tensor([[0.1, 0.1 + 1e-12, -torch.inf]], dtype=torch.float64),
        }
    )
    before = {n: s.clone() for n, s in found.items()}
    for keep in (1 / 6, 2 / 6, 0.5, 4 / 6):
        want = in_full_order(found, keep)
        got = lowest(found, keep)
        assert all(torch.equal(got[n], want[n]) for n in want), keep
    assert all(torch.equal(before[n], s) for n, s in found.items())
    dead = Mask({"a/m": torch.tensor([[True, False, True]]), "b/m": torch.ones(1, 3)})
    got = lowest(found, 0.5, mask=dead)
    assert got["a/m"].tolist() == [[False, False, True]]
    assert got["b/m"].tolist() == [[True, True, False]]


def test_the_kth_smallest():
    g = torch.Generator().manual_seed(0)
    wild = torch.randn(3000, generator=g, dtype=torch.float64)
    wild *= 10 ** torch.randint(-30, 30, wild.shape, generator=g)
    wild[:6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1e-42, -1e-42])
    for dtype in (torch.float32, torch.float64):
        for values in (wild.to(dtype), wild.to(dtype).round(), -wild.to(dtype).abs()):
            order = values.sort().values
            for k in (1, 2, 700, 1500, 1501, 2999, 3000):
                edge, below = smallest(list(values.split(1100)), k)
                assert edge == order[k - 1]
                assert below == int((values < edge).sum())


@pytest.mark.parametrize("values", [None, 1, 3])
@pytest.mark.parametrize("keep", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_every_row_keeps_the_same_number_and_the_best(keep, values):
    found = scores((6, 7), (3, 12), values=values)
    mask = per_row(found, keep)
    for name, m in mask.items():
        count = round(keep * m.shape[1])
        assert (m.sum(1) == count).all()
        for row, kept in zip(found[name], m):
            best = max(sum(choice) for choice in combinations(row.tolist(), count))
            assert row[kept].sum().item() == pytest.approx(best, abs=1e-5)
            assert torch.equal(kept, in_full_order({"r": row}, keep)["r"])


@pytest.mark.parametrize("values", [None, 1, 2])
@pytest.mark.parametrize(("n", "m"), [(2, 4), (4, 8), (1, 4), (1, 2), (3, 5), (4, 4)])
def test_n_of_m_is_the_best_choice_and_a_shorter_group_keeps_its_share(n, m, values):
    for width in (8, 13, 3):
        found = scores((5, width), values=values)
        mask = n_m(found, n, m)["0/m"]
        for start in range(0, width, m):
            group, kept = found["0/m"][:, start : start + m], mask[:, start : start + m]
            count = n if group.shape[1] == m else ceil(n * group.shape[1] / m)
            assert (kept.sum(1) == count).all()
            for row, chosen in zip(group, kept):
                best = max(sum(choice) for choice in combinations(row.tolist(), count))
                assert row[chosen].sum().item() == pytest.approx(best, abs=1e-5)
                closed = row.argsort(stable=True)[: len(row) - count]  # the earlier of equals go
                assert not chosen[closed].any()


def test_rows_run_along_the_inputs_of_transposed_matrices_too():
    model = tiny("gpt2")
    found = criteria.load("magnitude")(model, sites(model, "weights"))
    assert set(found.axes.values()) == {0}
    straight = Scores({n: s.T for n, s in found.items()}, dict.fromkeys(found, 1))
    for choose in (lambda s: per_row(s, 0.3), lambda s: n_m(s, 2, 4)):
        turned, plain = choose(found), choose(straight)
        assert all(torch.equal(turned[n], plain[n].T) for n in found)
        assert all(turned[n].shape == found[n].shape for n in found)
    wrong = per_row(Scores(found, dict.fromkeys(found, 1)), 0.3)
    assert any(not torch.equal(per_row(found, 0.3)[n], wrong[n]) for n in found)


def test_a_norm_is_one_row():
    model = tiny("bert")
    found = [s for s in sites(model, "weights", norms=True) if s.reads == "channels"]
    mask = n_m(criteria.load("magnitude")(model, found), 2, 4)
    assert all(m.shape == (48,) and int(m.sum()) == 24 for m in mask.values())


def test_the_dead_stay_dead_in_rows_and_groups():
    found = scores((4, 8), values=3)
    found["0/m"][0, 5] = -torch.inf  # alive, and still not before the dead
    dead = Mask({"0/m": torch.ones(4, 8)})
    dead["0/m"][:, :2] = False
    rows = per_row(found, 5 / 8, mask=dead)["0/m"]
    assert not rows[:, :2].any()
    assert (rows.sum(1) == 5).all()
    dead["0/m"][0, :3] = False
    groups = n_m(found, 2, 4, mask=dead)["0/m"]
    assert groups[0, :4].tolist() == [False, False, False, True]  # one of them is all that lived
    assert (groups[1:].unflatten(1, (-1, 4)).sum(-1) == 2).all()
    rows = per_row(found, 0.75, mask=dead)["0/m"]
    assert torch.equal(rows[0], dead["0/m"][0].bool())  # five lived, six were asked for
    assert (rows[1:].sum(1) == 6).all()


def test_a_matrix_with_fewer_living_than_asked_keeps_those():
    """A model that came with more zeros in one layer than in another can be pruned on, layer by layer."""
    found = Scores({"0/m": torch.rand(4, 8), "1/m": torch.rand(4, 8)}, axes={"0/m": 1, "1/m": 1})
    living = Mask({"0/m": torch.rand(4, 8) < 0.3, "1/m": torch.ones(4, 8) > 0})
    chosen = per_layer(found, 0.75, mask=living)
    assert torch.equal(chosen["0/m"], living["0/m"])
    assert int(chosen["1/m"].sum()) == 24
    with pytest.raises(EspalierError, match="cannot be kept"):
        lowest(found, 0.9, mask=living)


def test_what_has_no_rows_says_so():
    heads = Scores({"0/heads": torch.rand(6)})
    for choose in (lambda: per_row(heads, 0.5), lambda: n_m(heads, 2, 4)):
        with pytest.raises(EspalierError, match=r"0/heads has no rows.*axes="):
            choose()
    with pytest.raises(EspalierError, match="got 5 of 4"):
        n_m(scores((2, 4)), 5, 4)
    with pytest.raises(EspalierError, match="not numbers"):
        per_row(Scores({"0/m": torch.full((2, 4), torch.nan)}, {"0/m": 1}), 0.5)
    with pytest.raises(EspalierError, match="no scores"):
        n_m(Scores(), 2, 4)


def test_highest_of_nothing():
    assert highest(torch.zeros(3, 0), 0).shape == (3, 0)
    assert highest(torch.zeros(0, 3), 1).shape == (0, 3)
    empty = Scores({"0/m": torch.zeros(0, 5), "1/m": torch.zeros(3, 0)}, {"0/m": 1, "1/m": 1})
    for mask in (lowest(empty, 0.5), per_layer(empty, 0.5), per_row(empty, 0.5), n_m(empty, 2, 4)):
        assert [m.numel() for m in mask.values()] == [0, 0]


def test_the_dead_go_before_the_living_that_score_least():
    low = -torch.inf
    values = torch.tensor([low, 5.0, low, 1.0])
    alive = torch.tensor([True, False, True, True])
    assert highest(values, 2, alive).tolist() == [False, False, True, True]
    assert highest(values, 3, alive).tolist() == [True, False, True, True]


def test_minus_zero_is_zero():
    found = Scores({"0/m": torch.tensor([[0.0, -0.0, 0.0, 1.0]])})
    assert lowest(found, 0.5)["0/m"].tolist() == [[False, False, True, True]]
    assert lowest(found, 0.75)["0/m"].tolist() == [[False, True, True, True]]


def test_scopes_by_name():
    """As the command line spells them; N:M needs no fraction."""
    from espalier.selection.scopes import chooser

    scores = Scores({"a/w": torch.rand(6, 8)}, axes={"a/w": 1})
    assert chooser("global")(scores, 0.5)["a/w"].sum() == 24
    assert (chooser("row")(scores, 0.5)["a/w"].sum(1) == 4).all()
    groups = chooser("2:4")(scores, 0.123)["a/w"].view(6, 2, 4).sum(-1)
    assert (groups == 2).all()
    for wrong in ("rows", "5:4", "0:4", ":4"):
        with pytest.raises(EspalierError):
            chooser(wrong)
