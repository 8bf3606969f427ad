"""Properties that hold for random inputs: plans, cuts, masks, layouts and the choice of exactly k units."""

import copy
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier import Mask, Plan, Scores, cut, plan_of, remove_lowest, sites
from espalier.architectures.site import channels, parse, roles, unit_axis
from espalier.testing.tiny import inputs, outputs, same, tiny

quick = settings(deadline=None, derandomize=True, max_examples=60)
NAMES = ("0/heads", "0/neurons", "1/heads", "1/cross_heads")
WHOLE = st.integers(0, 30)
TIES = st.sampled_from([-torch.inf, -1.0, 0.0, 0.5, 0.5, 2.0])  # few values, so most scores are equal


@st.composite
def kept_of(draw, units):
    """Some of so many units."""
    return sorted(draw(st.sets(st.integers(0, units - 1), max_size=units))) if units else []


@st.composite
def chains(draw, length):
    """Plans that each count what the ones before it leave; each names only some of the sites."""
    left, out = {name: draw(WHOLE) for name in NAMES}, []
    for step in range(length):
        named = draw(st.sets(st.sampled_from(NAMES)))
        keep = {name: draw(kept_of(left[name])) for name in sorted(named)}
        out.append(Plan(keep, {name: left[name] for name in keep}, {f"step {step}": step}))
        left |= {name: len(kept) for name, kept in keep.items()}
    return out


@quick
@given(chains(3))
def test_then_is_associative(plans):
    a, b, c = plans
    assert a.then(b).then(c) == a.then(b.then(c))


@quick
@given(chains(1))
def test_a_plan_that_keeps_everything_changes_nothing(plans):
    (plan,) = plans
    everything = Plan({n: list(range(u)) for n, u in plan.units.items()}, plan.units)
    assert everything.then(plan) == plan
    assert plan.then(Mask({n: torch.ones(len(k)) for n, k in plan.keep.items()})) == plan


@quick
@given(chains(1), st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3))
def test_a_plan_from_a_file_is_the_plan(tmp_path_factory, plans, origin):
    plan = Plan(plans[0].keep, plans[0].units, origin)
    file = tmp_path_factory.getbasetemp() / "plan.json"
    plan.save(file)
    assert Plan.load(file) == plan
    assert Plan.from_dict(plan.to_dict()) == plan
    assert Plan.of(plan.mask()).keep == plan.keep


@cache
def _model(model_type):
    return tiny(model_type)


def _random_mask(units, seed, fraction):
    generator = torch.Generator().manual_seed(seed)
    mask = Mask({n: torch.rand(u, generator=generator) < fraction for n, u in units.items()})
    for kept in mask.values():
        kept[:1] = False  # a mask that removes nothing leaves no record
    return mask


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "llama", "t5"])
@settings(deadline=None, derandomize=True, max_examples=6)
@given(st.integers(0, 99), st.sampled_from([0, 0.2, 0.5, 0.9]), st.sampled_from([0, 0.5, 0.9]), st.data())
def test_a_cut_of_a_cut_is_the_cut_of_both_plans(model_type, seed, first, second, data):
    whole = _model(model_type)
    named = data.draw(st.sets(st.sampled_from(sites(whole)), min_size=1))
    before = _random_mask({site.name: site.units for site in named}, seed, first)
    later = _random_mask({name: int(m.sum()) for name, m in before.items()}, seed + 1, second)
    twice, once = copy.deepcopy(whole), copy.deepcopy(whole)
    for mask in (before, later):
        cut(twice, mask, report=False)
    plan = Plan.of(before).then(later)
    cut(once, plan, report=False)
    assert plan_of(once).keep == plan_of(twice).keep == plan.keep
    weights = twice.state_dict()
    assert all(torch.equal(w, weights[name]) for name, w in once.state_dict().items())
    same(outputs(twice, inputs(whole)), outputs(once, inputs(whole)), "cut twice", exact=True)


LAYOUTS = (
    "(u d) m",
    "(u g d) m",
    "m (u d)",
    "m ([q k v] u d)",
    "([q k v] u d) m",
    "(u [q k v] d) m",
    "([gate up] u) m",
    "u m",
    "(q: u g d + k: u d + v: u d) m",
)


@quick
@given(st.sampled_from(LAYOUTS), WHOLE, st.integers(1, 5), st.integers(1, 4))
def test_channels_belong_to_one_unit_and_one_role_each(layout, units, d, g):
    sizes = {"d": d, "g": g}
    terms = parse(layout)[unit_axis(layout)]
    size = 0
    for _, factors in terms:
        width = units
        for factor in factors:
            width *= len(factor.strip("[]").split()) if factor.startswith("[") else sizes.get(factor, 1)
        size += width
    every = channels(layout, size, tuple(sizes.items()))
    assert every.shape == (units, size // units if units else every.shape[1])
    assert sorted(every.flatten().tolist()) == list(range(size))
    parts = [channels(layout, size, tuple(sizes.items()), role) for role in roles("w", layout)]
    if roles("w", layout) != ["w"]:
        assert sorted(torch.cat(parts, 1).flatten().tolist()) == list(range(size))
        for unit, row in enumerate(every.tolist()):
            assert sorted(row) == sorted(c for part in parts for c in part[unit].tolist())
    for part in parts:  # units lie in order, so that a cut keeps the order of what it keeps
        assert all(a < b for row in part.tolist() for a, b in pairwise(row))
        assert all(a < b for column in part.T.tolist() for a, b in pairwise(column))


@quick
@given(chains(1))
def test_masks_and_plans_are_each_other(plans):
    (plan,) = plans
    mask = plan.mask()
    assert {n: m.nonzero().flatten().tolist() for n, m in mask.items()} == plan.keep
    assert mask.kept == pytest.approx(plan.kept)

    class Place:
        def __init__(self, name):
            self.name, self.shape = name, (plan.units[name],)

    removed = {n: set(range(plan.units[n])) - set(k) for n, k in plan.keep.items()}
    again = Mask.without([Place(name) for name in plan.keep], removed)
    assert all(torch.equal(again[name], mask[name]) for name in mask)


@st.composite
def scored(draw, matrices=False):
    """Scores with many ties, a mask of what is left, and the fraction to remove."""
    out, mask = Scores(), Mask()
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        shape = (draw(st.integers(1, 5)), draw(st.integers(1, 9))) if matrices else (draw(st.integers(1, 9)),)
        size = torch.Size(shape).numel()
        values = draw(st.lists(TIES, min_size=size, max_size=size))
        dtype = draw(st.sampled_from([torch.float32, torch.float64]))
        out[name] = torch.tensor(values, dtype=dtype).view(shape)
        mask[name] = torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size))).view(shape)
        out.axes[name] = draw(st.integers(0, len(shape) - 1))
    return out, mask, draw(st.floats(0, 1))


def order(scores, names):
    """(score, position) of every unit: what is lower, or equal and earlier, is removed first."""
    flat = [v for name in names for v in scores[name].flatten().tolist()]
    return sorted((value, position) for position, value in enumerate(flat))


@quick
@given(scored(), st.sampled_from(["global", "layer"]))
def test_exactly_k_are_kept_and_the_earlier_of_equals_is_removed(given_, scope):
    scores, _, remove = given_
    mask = remove_lowest(scores, remove, scope=scope)
    for names in [list(scores)] if scope == "global" else [[name] for name in scores]:
        flat = torch.cat([mask[name].flatten() for name in names]).tolist()
        want = round((1 - remove) * len(flat))
        assert sum(flat) == want
        removed = {position for _, position in order(scores, names)[: len(flat) - want]}
        assert {i for i, kept in enumerate(flat) if not kept} == removed


@quick
@given(scored())
def test_what_was_removed_stays_removed(given_):
    scores, left, remove = given_
    kept = sum(int(m.sum()) for m in left.values())
    units = sum(m.numel() for m in left.values())
    want = round((1 - remove) * units)
    if want > kept:
        return
    mask = remove_lowest(scores, remove, mask=left)
    assert all(not (mask[n] & ~left[n]).any() for n in mask)
    assert sum(int(m.sum()) for m in mask.values()) == want
    inside = [v for n in scores for v in scores[n][left[n]].tolist()]
    chosen = [k for n in scores for k in mask[n][left[n]].tolist()]
    lowest = sorted((value, position) for position, value in enumerate(inside))[: kept - want]
    assert {i for i, k in enumerate(chosen) if not k} == {position for _, position in lowest}


@quick
@given(scored(matrices=True), st.sampled_from(["row", "1:2", "2:4", "3:3", "2:3"]))
def test_every_row_keeps_its_share(given_, scope):
    scores, _, remove = given_
    mask = remove_lowest(scores, remove if scope == "row" else None, scope=scope)
    for name, score in scores.items():
        rows, kept = (t.movedim(scores.axes[name], -1) for t in (score, mask[name]))
        width = rows.shape[-1]
        n, m = map(int, scope.split(":")) if scope != "row" else (round((1 - remove) * width), width)
        for values, keep in zip(rows.tolist(), kept.tolist()):
            for start in range(0, width, m):
                group = sorted((v, i) for i, v in enumerate(values[start : start + m]))
                share = n if len(group) == m else -(-n * len(group) // m)
                removed = {i for _, i in group[: len(group) - share]}
                assert {i for i, k in enumerate(keep[start : start + m]) if not k} == removed
