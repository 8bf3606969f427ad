"""Choosing weights: exact counts, the best choice there is, and no dependence on ties."""

from itertools import combinations
from math import ceil

import pytest
import torch

from espalier import Mask, Scores, criteria, remove_lowest, sites
from espalier.core.errors import InvalidValueError, UnknownNameError
from espalier.selection.scopes import SCOPES, groups_of, keep_highest, kth_smallest, out_of_reach, removed_by
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


def in_full_order(found, remove, mask=None):
    """The plain way: sort everything, earlier first among equals, removed units before all."""
    units = [
        (bool(mask[n].flatten()[i]) if mask else True, v, k, n, i)
        for k, n in enumerate(found)
        for i, v in enumerate(found[n].flatten().tolist())
    ]
    units.sort(key=lambda unit: (unit[0], unit[1], unit[2], unit[4]))
    out = {n: torch.ones(found[n].numel(), dtype=torch.bool) for n in found}
    for _, _, _, n, i in units[: len(units) - round((1 - remove) * len(units))]:
        out[n][i] = False
    return {n: out[n].view_as(found[n]) for n in found}


@pytest.mark.parametrize("remove", [0.0, 0.001, 0.5, 0.7, 0.99, 1.0])
@pytest.mark.parametrize("values", [None, 1, 2, 5])
def test_a_threshold_chooses_as_a_full_order_does(remove, values):
    for seed in range(3):
        found = scores((7, 9), (5, 4), (1, 30), seed=seed, values=values)
        for precision in (torch.float32, torch.float64, torch.bfloat16):
            low = Scores({n: s.to(precision) for n, s in found.items()})
            want = in_full_order(low, remove)
            got = remove_lowest(low, remove)
            assert all(torch.equal(got[n], want[n]) for n in want)
        mask = Mask({n: s > -0.5 for n, s in scores((7, 9), (5, 4), (1, 30), seed=9).items()})
        if remove > 0.4:
            want = in_full_order(found, remove, mask)
            got = remove_lowest(found, remove, mask=mask)
            assert all(torch.equal(got[n], want[n]) for n in want)
            assert not any((got[n] & ~mask[n]).any() for n in got)


def test_infinite_scores_mixed_precision_and_unchanged_arguments():
    found = Scores(
        {
            "a/m": torch.tensor([[-torch.inf, 0.1, torch.inf]]),
            "b/m": torch.tensor([[0.1, 0.1 + 1e-12, -torch.inf]], dtype=torch.float64),
        }
    )
    before = {n: s.clone() for n, s in found.items()}
    for remove in (5 / 6, 4 / 6, 0.5, 2 / 6):
        want = in_full_order(found, remove)
        got = remove_lowest(found, remove)
        assert all(torch.equal(got[n], want[n]) for n in want), remove
    assert all(torch.equal(before[n], s) for n, s in found.items())
    mask = Mask({"a/m": torch.tensor([[True, False, True]]), "b/m": torch.ones(1, 3)})
    got = remove_lowest(found, 0.5, mask=mask)
    assert got["a/m"].tolist() == [[False, False, True]]
    assert got["b/m"].tolist() == [[True, True, False]]


def test_the_kth_smallest():
    g = torch.Generator().manual_seed(0)
    mixed = torch.randn(3000, generator=g, dtype=torch.float64)
    mixed *= 10 ** torch.randint(-30, 30, mixed.shape, generator=g)
    mixed[:6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1e-42, -1e-42])
    for dtype in (torch.float32, torch.float64):
        for values in (mixed.to(dtype), mixed.to(dtype).round(), -mixed.to(dtype).abs()):
            order = values.sort().values
            for k in (1, 2, 700, 1500, 1501, 2999, 3000):
                edge, below = kth_smallest(list(values.split(1100)), k)
                assert edge == order[k - 1]
                assert below == int((values < edge).sum())


@pytest.mark.parametrize("values", [None, 1, 3])
@pytest.mark.parametrize("remove", [0.0, 0.1, 0.5, 0.75, 1.0])
def test_every_row_keeps_the_same_number_and_the_best(remove, values):
    found = scores((6, 7), (3, 12), values=values)
    mask = remove_lowest(found, remove, scope="row")
    for name, m in mask.items():
        count = round((1 - remove) * m.shape[1])
        assert (m.sum(1) == count).all()
        for row, kept in zip(found[name], m):
            best = max(sum(choice) for choice in combinations(row.tolist(), count))
            assert row[kept].sum().item() == pytest.approx(best, abs=1e-5)
            assert torch.equal(kept, in_full_order({"r": row}, remove)["r"])


@pytest.mark.parametrize("values", [None, 1, 2])
@pytest.mark.parametrize(("n", "m"), [(2, 4), (4, 8), (1, 4), (1, 2), (3, 5), (4, 4)])
def test_n_of_m_is_the_best_choice_and_a_shorter_group_keeps_its_share(n, m, values):
    for width in (8, 13, 3):
        found = scores((5, width), values=values)
        mask = remove_lowest(found, scope=f"{n}:{m}")["0/m"]
        for start in range(0, width, m):
            group, kept = found["0/m"][:, start : start + m], mask[:, start : start + m]
            count = n if group.shape[1] == m else ceil(n * group.shape[1] / m)
            assert (kept.sum(1) == count).all()
            for row, chosen in zip(group, kept):
                best = max(sum(choice) for choice in combinations(row.tolist(), count))
                assert row[chosen].sum().item() == pytest.approx(best, abs=1e-5)
                removed = row.argsort(stable=True)[: len(row) - count]  # the earlier of equals
                assert not chosen[removed].any()


def test_rows_run_along_the_inputs_of_transposed_matrices_too():
    model = tiny("gpt2")
    found = criteria.load("magnitude")(model, sites(model, "weights"))
    assert set(found.axes.values()) == {0}
    straight = Scores({n: s.T for n, s in found.items()}, dict.fromkeys(found, 1))
    for options in ({"remove": 0.7, "scope": "row"}, {"scope": "2:4"}):
        turned, plain = remove_lowest(found, **options), remove_lowest(straight, **options)
        assert all(torch.equal(turned[n], plain[n].T) for n in found)
        assert all(turned[n].shape == found[n].shape for n in found)
    right = remove_lowest(found, 0.7, scope="row")
    wrong = remove_lowest(Scores(found, dict.fromkeys(found, 1)), 0.7, scope="row")
    assert any(not torch.equal(right[n], wrong[n]) for n in found)


def test_a_norm_is_one_row():
    model = tiny("bert")
    found = [s for s in sites(model, "weights", also=["norms"]) if s.reads == "channels"]
    mask = remove_lowest(criteria.load("magnitude")(model, found), scope="2:4")
    assert all(m.shape == (48,) and int(m.sum()) == 24 for m in mask.values())


def test_removed_weights_stay_removed_in_rows_and_groups():
    found = scores((4, 8), values=3)
    found["0/m"][0, 5] = -torch.inf  # kept by the mask: removed after those that it removes
    mask = Mask({"0/m": torch.ones(4, 8)})
    mask["0/m"][:, :2] = False
    rows = remove_lowest(found, 3 / 8, scope="row", mask=mask)["0/m"]
    assert not rows[:, :2].any()
    assert (rows.sum(1) == 5).all()
    mask["0/m"][0, :3] = False
    groups = remove_lowest(found, scope="2:4", mask=mask)["0/m"]
    assert groups[0, :4].tolist() == [False, False, False, True]  # the mask keeps only one of them
    assert (groups[1:].unflatten(1, (-1, 4)).sum(-1) == 2).all()
    rows = remove_lowest(found, 0.25, scope="row", mask=mask)["0/m"]
    assert torch.equal(rows[0], mask["0/m"][0].bool())  # five are left, six were asked for
    assert (rows[1:].sum(1) == 6).all()


def test_a_matrix_with_fewer_weights_left_than_asked_keeps_those():
    """A model that has more zeros in one layer than in another can be pruned further, layer by layer."""
    found = Scores({"0/m": torch.rand(4, 8), "1/m": torch.rand(4, 8)}, axes={"0/m": 1, "1/m": 1})
    mask = Mask({"0/m": torch.rand(4, 8) < 0.3, "1/m": torch.ones(4, 8) > 0})
    chosen = remove_lowest(found, 0.25, scope="layer", mask=mask)
    assert torch.equal(chosen["0/m"], mask["0/m"])
    assert int(chosen["1/m"].sum()) == 24
    assert out_of_reach("global", 0.1, mask)
    assert not out_of_reach("layer", 0.1, mask)
    with pytest.raises(InvalidValueError) as error:
        remove_lowest(found, 0.1, mask=mask)
    assert error.value.parameter == "remove"


@pytest.mark.parametrize("scope", ["row", "2:4"])
def test_heads_have_no_rows(scope):
    with pytest.raises(InvalidValueError) as error:
        remove_lowest(Scores({"0/heads": torch.rand(6)}), 0.5, scope=scope)
    assert error.value.parameter == "scope"


@pytest.mark.parametrize(
    "found", [Scores(), Scores({"0/m": torch.full((2, 4), torch.nan)}, {"0/m": 1})], ids=["none", "nan"]
)
@pytest.mark.parametrize("scope", [*SCOPES, "2:4"])
def test_scores_without_an_order_are_refused(found, scope):
    with pytest.raises(InvalidValueError) as error:
        remove_lowest(found, 0.5, scope=scope)
    assert error.value.parameter == "scores"


def test_the_highest_of_nothing():
    assert keep_highest(torch.zeros(3, 0), 0).shape == (3, 0)
    assert keep_highest(torch.zeros(0, 3), 1).shape == (0, 3)
    empty = Scores({"0/m": torch.zeros(0, 5), "1/m": torch.zeros(3, 0)}, {"0/m": 1, "1/m": 1})
    for scope in (*SCOPES, "2:4"):
        assert [m.numel() for m in remove_lowest(empty, 0.5, scope=scope).values()] == [0, 0]


def test_values_that_are_not_allowed_are_removed_before_those_that_score_least():
    low = -torch.inf
    values = torch.tensor([low, 5.0, low, 1.0])
    allowed = torch.tensor([True, False, True, True])
    assert keep_highest(values, 2, allowed).tolist() == [False, False, True, True]
    assert keep_highest(values, 3, allowed).tolist() == [True, False, True, True]


def test_minus_zero_is_zero():
    found = Scores({"0/m": torch.tensor([[0.0, -0.0, 0.0, 1.0]])})
    assert remove_lowest(found, 0.5)["0/m"].tolist() == [[False, False, True, True]]
    assert remove_lowest(found, 0.25)["0/m"].tolist() == [[False, True, True, True]]


def test_scopes_by_name():
    found = Scores({"a/w": torch.rand(6, 8)}, axes={"a/w": 1})
    assert remove_lowest(found, 0.5, scope="global")["a/w"].sum() == 24
    assert (remove_lowest(found, 0.5, scope="row")["a/w"].sum(1) == 4).all()
    for remove in (None, 0.5):
        groups = remove_lowest(found, remove, scope="2:4")["a/w"].view(6, 2, 4).sum(-1)
        assert (groups == 2).all()
    assert groups_of("2:4") == (2, 4)
    assert removed_by("1:4", None) == 0.75
    assert removed_by("row", 0.3) == 0.3
    with pytest.raises(InvalidValueError) as error:
        removed_by("1:4", 0.5)
    assert error.value.parameter == "remove"
    for wrong in ("rows", "5:4", "0:4", ":4"):
        with pytest.raises(UnknownNameError) as error:
            remove_lowest(found, 0.5, scope=wrong)
        assert error.value.parameter == "scope"
    for options in ({"remove": 0.123, "scope": "2:4"}, {"remove": 1.5}, {"remove": None}):
        with pytest.raises(InvalidValueError) as error:
            remove_lowest(found, **options)
        assert error.value.parameter == "remove"
