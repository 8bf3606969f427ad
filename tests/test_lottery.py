"""Lottery tickets: the law of the density, rewinding bit for bit, and controls that control."""

import copy
from itertools import pairwise

import pytest
import torch
from test_masking import OPTIMISERS, batch, net, places
from torch import nn

from espalier import EspalierError, Mask, per_layer, per_row, sites
from espalier.training.held_mask import held
from espalier.training.lottery import control, magnitudes, random_like, state_of, tickets

STEPS = 12


class Trainer:
    """A small training that remembers where each run began."""

    def __init__(self, found):
        self.sites, self.begun = found, []

    def __call__(self, model, mask, start, watch):
        optimiser = OPTIMISERS["adamw"](model.parameters())
        self.begun.append((start, state_of(model), mask))
        watch(start)
        with held(self.sites, mask, optimiser):
            for step in range(start, STEPS):
                x, y = batch(step)
                nn.functional.cross_entropy(model(x), y).backward()
                optimiser.step()
                optimiser.zero_grad()
                watch(step + 1)
        return state_of(model)


def played(**options):
    model = net()
    found = places(model)
    train = Trainer(found)
    return train, list(tickets(model, found, train, **{"rounds": 4, "share": 0.3, **options}))


@pytest.mark.parametrize("rewind", [0, 5, STEPS])
def test_survivors_are_where_they_were(rewind):
    kept = {}
    train, found = played(rewind=rewind, snapshot=kept)
    # What the first training was at that step, trained once more up to there.
    model = net()
    optimiser = OPTIMISERS["adamw"](model.parameters())
    for step in range(rewind):
        x, y = batch(step)
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
        optimiser.zero_grad()
    want = state_of(model)
    assert all(torch.equal(kept[name], want[name]) for name in want)
    for ticket, (start, state, mask) in zip(found[1:], train.begun[1:]):
        assert start == rewind
        for name, value in state.items():
            site = name.removesuffix(".weight")
            if site in mask:
                assert torch.equal(value[mask[site]], want[name][mask[site]])
                assert (value[~mask[site]] == 0).all()
                assert (ticket.result[name][~mask[site]] == 0).all()
            else:
                assert torch.equal(value, want[name])  # biases go back too


@pytest.mark.parametrize("choose", [None, per_layer])
def test_the_law_of_the_density(choose):
    _, found = played(rounds=6, **({"choose": choose} if choose else {}))
    sizes = [48, 24]
    for number, ticket in enumerate(found):
        law = 0.7**number
        if choose:
            want = [round(law * size) for size in sizes]
            assert [int(m.sum()) for m in ticket.mask.values()] == want
        else:
            assert sum(int(m.sum()) for m in ticket.mask.values()) == round(law * sum(sizes))
    for before, after in pairwise(found):
        assert all((after.mask[name] <= before.mask[name]).all() for name in before.mask)


def test_the_smallest_go():
    _, found = played(rounds=1)
    first, second = found
    final = torch.cat([first.result[f"{n}.weight"].abs().flatten() for n in second.mask])
    kept = torch.cat([m.flatten() for m in second.mask.values()])
    assert final[kept].min() >= final[~kept].max()


def test_rate_rewinding_keeps_the_weights():
    train, found = played(rewind=4, keep_weights=True)
    for before, (start, state, mask) in zip(found, train.begun[1:]):
        assert start == 4
        for site in mask:
            name = f"{site}.weight"
            assert torch.equal(state[name], before.result[name] * mask[site])
        assert torch.equal(state["0.bias"], before.result["0.bias"])


def test_controls():
    _, found = played(rounds=3)
    mask, model = found[-1].mask, net()
    other = random_like(mask, 1)
    assert [int(m.sum()) for m in other.values()] == [int(m.sum()) for m in mask.values()]
    assert [m.shape for m in other.values()] == [m.shape for m in mask.values()]
    assert any(not torch.equal(other[n], mask[n]) for n in mask)
    assert all(torch.equal(random_like(mask, 1)[n], other[n]) for n in mask)
    assert any(not torch.equal(random_like(mask, 2)[n], other[n]) for n in mask)
    torch.manual_seed(99)
    fresh = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    trainer = Trainer(places(model))
    result = control(model, trainer.sites, trainer, mask, state_of(fresh))
    ((start, state, _),) = trainer.begun
    assert start == 0
    for name in mask:
        assert torch.equal(state[f"{name}.weight"], fresh.state_dict()[f"{name}.weight"] * mask[name])
        assert (result[f"{name}.weight"][~mask[name]] == 0).all()


def test_a_ticket_is_trained_as_if_found_alone():
    """Its result follows from its mask and the snapshot, not from the rounds before."""
    kept = {}
    _, found = played(rewind=3, snapshot=kept)
    model = net()
    trainer = Trainer(places(model))
    again = control(model, trainer.sites, trainer, found[-1].mask, kept, start=3)
    assert all(torch.equal(again[name], found[-1].result[name]) for name in again)


def test_on_a_transformer(bert):
    """Any model with weight sites, buffers and tied weights included."""
    found, before = sites(bert, "weights"), copy.deepcopy(bert.state_dict())

    def train(model, mask, start, watch):
        watch(start)
        for p in model.parameters():
            p.data.add_(0.01)
        return

    *_, last = tickets(bert, found, train, rounds=2, share=0.5)
    total = sum(s.units for s in found)
    assert sum(int(m.sum()) for m in last.mask.values()) == round(total / 4)
    site = found[0]
    name = next(n for n, p in bert.named_parameters() if p is site.linear.weight)
    alive = last.mask[site.name]
    assert torch.equal(site.linear.weight[alive], before[name][alive] + 0.01)


def test_what_makes_no_sense_is_refused():
    model = net()
    found = places(model)
    train = Trainer(found)
    for wrong in ({"rounds": 0}, {"share": 1.0}, {"rewind": -1}):
        with pytest.raises(EspalierError, match="tickets need"):
            next(tickets(model, found, train, **{"rounds": 1, **wrong}))
    with pytest.raises(EspalierError, match="never came to step 99"):
        next(tickets(model, found, train, rounds=1, rewind=99))
    assert magnitudes(found)["0"].shape == (8, 6)
    assert Mask.ones(found).kept == 1


def test_a_snapshot_of_another_training_does_not_serve():
    kept = {"old": torch.ones(1)}
    with pytest.raises(EspalierError, match="never came to step"):
        played(rewind=STEPS + 1, snapshot=kept)
    played(snapshot=kept)
    assert "old" not in kept


def test_tickets_by_row():
    _, found = played(choose=per_row, rounds=1, share=0.5)
    for m in found[1].mask.values():
        assert set(m.sum(1).tolist()) == {m.shape[1] // 2}
