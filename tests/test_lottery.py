"""Lottery tickets: the density of each round, rewinding bit for bit, and controls."""

import copy
from itertools import pairwise

import pytest
import torch
from test_held_mask import OPTIMIZERS, batch, net, places
from torch import nn

from espalier import sites
from espalier.core.errors import InvalidValueError
from espalier.training.held_mask import held
from espalier.training.lottery import copy_state, random_like, tickets, train_control

STEPS = 12


class Trainer:
    """A small training that records the start of each run."""

    def __init__(self, found):
        self.sites, self.starts = found, []

    def __call__(self, model, mask, start, on_step):
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        self.starts.append((start, copy_state(model), mask))
        on_step(start)
        with held(self.sites, mask, optimizer):
            for step in range(start, STEPS):
                x, y = batch(step)
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
                on_step(step + 1)
        return copy_state(model)


def found_tickets(**options):
    model = net()
    found = places(model)
    train = Trainer(found)
    return train, list(tickets(model, found, train, **{"rounds": 4, "remove": 0.3, **options}))


@pytest.mark.parametrize("rewind", [0, 5, STEPS])
def test_kept_weights_are_rewound(rewind):
    kept = {}
    train, found = found_tickets(rewind=rewind, snapshot=kept)
    # The first training, repeated up to that step.
    model = net()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    for step in range(rewind):
        x, y = batch(step)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    want = copy_state(model)
    assert all(torch.equal(kept[name], want[name]) for name in want)
    for ticket, (start, state, mask) in zip(found[1:], train.starts[1:]):
        assert start == rewind
        for name, value in state.items():
            site = name.removesuffix(".weight")
            if site in mask:
                assert torch.equal(value[mask[site]], want[name][mask[site]])
                assert (value[~mask[site]] == 0).all()
                assert (ticket.result[name][~mask[site]] == 0).all()
            else:
                assert torch.equal(value, want[name])  # biases go back too


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_the_density_of_each_round(scope):
    _, found = found_tickets(rounds=6, scope=scope)
    sizes = [48, 24]
    for number, ticket in enumerate(found):
        density = 0.7**number
        if scope == "layer":
            want = [round(density * size) for size in sizes]
            assert [int(m.sum()) for m in ticket.mask.values()] == want
        else:
            assert sum(int(m.sum()) for m in ticket.mask.values()) == round(density * sum(sizes))
    for before, after in pairwise(found):
        assert all((after.mask[name] <= before.mask[name]).all() for name in before.mask)


def test_the_smallest_are_removed():
    _, found = found_tickets(rounds=1)
    first, second = found
    final = torch.cat([first.result[f"{n}.weight"].abs().flatten() for n in second.mask])
    kept = torch.cat([m.flatten() for m in second.mask.values()])
    assert final[kept].min() >= final[~kept].max()


def test_rate_rewinding_keeps_the_weights():
    train, found = found_tickets(rewind=4, keep_weights=True)
    for before, (start, state, mask) in zip(found, train.starts[1:]):
        assert start == 4
        for site in mask:
            name = f"{site}.weight"
            assert torch.equal(state[name], before.result[name] * mask[site])
        assert torch.equal(state["0.bias"], before.result["0.bias"])


def test_controls():
    _, found = found_tickets(rounds=3)
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
    result = train_control(model, trainer.sites, trainer, mask, copy_state(fresh))
    ((start, state, _),) = trainer.starts
    assert start == 0
    for name in mask:
        assert torch.equal(state[f"{name}.weight"], fresh.state_dict()[f"{name}.weight"] * mask[name])
        assert (result[f"{name}.weight"][~mask[name]] == 0).all()


def test_a_ticket_is_trained_as_if_found_alone():
    """Its result follows from its mask and the snapshot, not from the rounds before."""
    kept = {}
    _, found = found_tickets(rewind=3, snapshot=kept)
    model = net()
    trainer = Trainer(places(model))
    again = train_control(model, trainer.sites, trainer, found[-1].mask, kept, start=3)
    assert all(torch.equal(again[name], found[-1].result[name]) for name in again)


def test_on_a_transformer(bert):
    """Any model with weight sites, buffers and tied weights included."""
    found, before = sites(bert, "weights"), copy.deepcopy(bert.state_dict())

    def train(model, mask, start, on_step):
        on_step(start)
        for p in model.parameters():
            p.data.add_(0.01)
        return

    *_, last = tickets(bert, found, train, rounds=2, remove=0.5)
    total = sum(s.units for s in found)
    assert sum(int(m.sum()) for m in last.mask.values()) == round(total / 4)
    site = found[0]
    name = next(n for n, p in bert.named_parameters() if p is site.linear.weight)
    kept = last.mask[site.name]
    assert torch.equal(site.linear.weight[kept], before[name][kept] + 0.01)


def test_wrong_values_are_refused():
    model = net()
    found = places(model)
    train = Trainer(found)
    for wrong in ({"rounds": 0}, {"remove": 1.0}, {"rewind": -1}, {"rewind": 99}):
        with pytest.raises(InvalidValueError) as error:
            next(tickets(model, found, train, **{"rounds": 1, **wrong}))
        assert error.value.parameter == next(iter(wrong))


def test_a_snapshot_of_another_training_is_cleared():
    kept = {"old": torch.ones(1)}
    with pytest.raises(InvalidValueError):
        found_tickets(rewind=STEPS + 1, snapshot=kept)
    found_tickets(snapshot=kept)
    assert "old" not in kept


def test_tickets_by_row():
    _, found = found_tickets(scope="row", rounds=1, remove=0.5)
    for m in found[1].mask.values():
        assert set(m.sum(1).tolist()) == {m.shape[1] // 2}
