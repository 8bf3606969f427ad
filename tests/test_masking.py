"""Training under masks: pruned weights are zero, whatever the optimiser, the resuming and accelerate do."""

import copy
import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from test_training import (
    PER_EPOCH,
    calm_bert,
    fresh_bert,
    in_two_processes,
    killed_at,
    run,
    same,
    slow,
    stopping_at,
)
from torch import nn

from espalier import EspalierError, Mask, Ramp, Scores, criteria, load, lowest, per_layer, sites
from espalier.architectures.site import WeightSite
from espalier.selection.scopes import chooser
from espalier.training.gradual import Gradual, Hold, sparsity
from espalier.training.held_mask import Held, held, zeros_of
from espalier.training.lottery import magnitudes
from espalier.training.movement import Movement

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, fused=True),
}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def places(model):
    return [WeightSite(n, m, "m n") for n, m in model.named_modules() if isinstance(m, nn.Linear)]


def half(found, seed=0):
    dice = torch.Generator().manual_seed(seed)
    return Mask({s.name: torch.rand(s.shape, generator=dice) < 0.5 for s in found})


def batch(step):
    dice = torch.Generator().manual_seed(step)
    return torch.randn(16, 6, generator=dice), torch.randint(3, (16,), generator=dice)


def descend(model, optimiser, steps, first=0):
    for step in range(first, first + steps):
        x, y = batch(step)
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
        optimiser.zero_grad()


def closed(found, mask):
    return torch.cat([s.linear.weight[~mask[s.name]] for s in found])


def living(found, mask):
    return torch.cat([s.linear.weight[mask[s.name]] for s in found])


# ------------------------------------------------------------------------------------------ one step


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("straight", [False, True])
def test_zeros_survive_momentum_and_decay(name, straight):
    """The mask comes when moments are full, and every forward pass meets it."""
    model = net()
    found, optimiser, seen = places(model), OPTIMISERS[name](model.parameters()), []
    descend(model, optimiser, 5)
    mask = half(found)
    before = living(found, mask).clone()

    def look(*_):
        seen.append(closed(found, mask).abs().max().item())

    handle = model.register_forward_pre_hook(look)
    with held(found, mask, optimiser, straight=straight):
        descend(model, optimiser, 20, first=5)
    handle.remove()
    assert seen == [0.0] * 20
    assert torch.equal(closed(found, mask), torch.zeros_like(closed(found, mask)))
    assert not torch.equal(living(found, mask), before)
    assert (living(found, mask) != 0).all()
    descend(model, optimiser, 1)  # nobody holds it any more
    assert (closed(found, mask) != 0).any()


def test_gradients_of_the_pruned():
    model = net()
    found = places(model)
    mask = half(found)
    for straight in (False, True):
        optimiser = OPTIMISERS["adamw"](model.parameters())
        with held(found, mask, optimiser, straight=straight):
            x, y = batch(0)
            nn.functional.cross_entropy(model(x), y).backward()
            got = {s.name: s.linear.weight.grad.clone() for s in found}
            optimiser.zero_grad()
        # The gradient of the product M⊙W, by autograd on a copy that multiplies.
        products = [(s.linear.weight * mask[s.name]).detach().requires_grad_() for s in found]
        hidden = nn.functional.linear(x, products[0], model[0].bias).tanh()
        out = nn.functional.linear(hidden, products[1], model[2].bias)
        wanted = torch.autograd.grad(nn.functional.cross_entropy(out, y), products)
        for site, want in zip(found, wanted):
            grad, gone = got[site.name], ~mask[site.name]
            torch.testing.assert_close(grad[~gone], want[~gone])
            if straight:
                torch.testing.assert_close(grad[gone], want[gone])
                assert (grad[gone] != 0).any()
            else:
                assert (grad[gone] == 0).all()


def test_held_is_the_same_as_training_the_product():
    """`masked`: as if only the living weights existed. Plain SGD on M⊙W, written out."""
    model, twin = net(), net()
    found, others = places(model), places(twin)
    mask = half(found)
    with held(found, mask, torch.optim.SGD(model.parameters(), lr=0.1)) as hold:
        descend(model, hold._optimiser, 10)
    weights = [s.linear.weight.detach().clone() for s in others]
    for step in range(10):
        x, y = batch(step)
        for site, w in zip(others, weights):
            site.linear.weight.data = w * mask[site.name]
        nn.functional.cross_entropy(twin(x), y).backward()
        with torch.no_grad():
            for site, w in zip(others, weights):
                w -= 0.1 * site.linear.weight.grad * mask[site.name]
                site.linear.bias -= 0.1 * site.linear.bias.grad
        twin.zero_grad()
    for site, w in zip(found, weights):
        torch.testing.assert_close(site.linear.weight.detach(), w * mask[site.name])


def test_straight_weights_learn_behind_the_mask():
    """By hand: W −= rate · ∂L/∂(M⊙W), everywhere."""
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[2.0, 3.0]])
    site = WeightSite("w", model, "m n")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    with held([site], Mask({"w": torch.tensor([[1, 0]])}), optimiser, straight=True) as hold:
        assert model.weight.tolist() == [[2.0, 0.0]]
        out = model(torch.tensor([[1.0, 4.0]]))
        assert out.item() == 2.0
        out.sum().backward()
        optimiser.step()
        assert model.weight.tolist() == [[1.5, 0.0]]
        assert hold.behind["w"].tolist() == [[1.5, 1.0]]
        hold.change(Mask({"w": torch.tensor([[0, 1]])}))
        assert model.weight.tolist() == [[0.0, 1.0]]


def test_what_opens_again_is_zero_and_without_momentum():
    model = net()
    found, optimiser = places(model), OPTIMISERS["adamw"](model.parameters())
    ones, mask = Mask.ones(found), half(found)
    with held(found, ones, optimiser) as hold:
        descend(model, optimiser, 5)
        hold.change(mask)
        for site in found:
            for what in ("exp_avg", "exp_avg_sq"):
                moment = optimiser.state[site.linear.weight][what]
                assert (moment[~mask[site.name]] == 0).all()
                assert (moment[mask[site.name]] != 0).any()
        hold.change(ones)
        assert (closed(found, mask) == 0).all()
        descend(model, optimiser, 1)
        assert (closed(found, mask) != 0).any()


def test_infinite_weights_become_zero_too():
    model = net()
    model[0].weight.data[0, 0], model[0].weight.data[0, 1] = torch.inf, torch.nan
    found = places(model)
    mask = Mask.ones(found)
    mask["0"][0, :2] = False
    Held(found, mask)
    assert model[0].weight[0, :2].tolist() == [0.0, 0.0]
    assert not torch.signbit(model[0].weight[0, :2]).any()


def test_scoring_in_between_changes_nothing(bert):
    """Criteria freeze the weights for a moment; the hooks outlive it."""
    found = sites(bert, "weights")
    mask = half(found)
    optimiser = torch.optim.AdamW(bert.parameters(), lr=1e-2)
    ids = torch.randint(0, 50, (4, 9))
    with held(found, mask, optimiser):
        criteria.load("magnitude")(bert, found)
        bert(input_ids=ids, labels=torch.tensor([0, 1, 0, 1])).loss.backward()
        assert all((s.linear.weight.grad[~mask[s.name]] == 0).all() for s in found)
        assert any((s.linear.weight.grad != 0).any() for s in found)


def test_a_copy_and_a_state_dict_are_ordinary(bert):
    found = sites(bert, "weights")
    names = set(bert.state_dict())
    with held(found, half(found), torch.optim.AdamW(bert.parameters())):
        assert set(bert.state_dict()) == names
        twin = copy.deepcopy(bert)
    assert same(twin, bert)


@pytest.mark.parametrize("first", ["held", "prepared"])
def test_with_accelerate(first):
    from accelerate import Accelerator

    accelerator, model, alone = Accelerator(cpu=True), net(), net()
    found, others = places(model), places(alone)
    mask = half(found)
    optimiser = OPTIMISERS["adamw"](model.parameters())
    if first == "held":
        hold = Held(found, mask).attach(optimiser)
    wrapped, optimiser = accelerator.prepare(model, optimiser)
    if first == "prepared":
        hold = Held(found, mask).attach(optimiser)
    for step in range(10):
        x, y = batch(step)
        accelerator.backward(nn.functional.cross_entropy(wrapped(x), y))
        optimiser.step()
        optimiser.zero_grad()
    hold.release()
    plain = OPTIMISERS["adamw"](alone.parameters())
    with held(others, mask, plain):
        descend(alone, plain, 10)
    assert (closed(found, mask) == 0).all()
    assert same(model, alone)


def test_wrong_masks_are_refused():
    model = net()
    found = places(model)
    with pytest.raises(EspalierError, match=r"2 has shape \(3, 8\), its mask none"):
        Held(found, Mask({"0": torch.ones(8, 6)}))
    with pytest.raises(EspalierError, match=r"shape \(8, 6\), its mask \(6, 8\)"):
        Held(found, Mask({"0": torch.ones(6, 8), "2": torch.ones(3, 8)}))
    with pytest.raises(EspalierError, match="no weights '1'"):
        Held(found, Mask({**Mask.ones(found), "1": torch.ones(1)}))
    with pytest.raises(EspalierError, match="share one weight"):
        Held([found[0], WeightSite("twin", found[0].linear, "m n")], Mask())


# ------------------------------------------------------------------------------------------ the loop


def gradual(**more):
    settings = {"keep": 0.3, "schedule": "cubic", "until": 0.75, "every": 2}
    return Gradual(criteria.load("magnitude"), **{**settings, **more})


REGIMES = {
    "masked": gradual,
    "straight": lambda: gradual(straight=True),
    "layer": lambda: gradual(choose=per_layer, initial=0.5, schedule="cubed", until=1.0),
    "movement": lambda: Movement(keep=0.3, until=0.75),
}


@pytest.mark.parametrize("name", REGIMES)
def test_stopped_anywhere_and_still_the_same_weights(name, tmp_path):
    """Bit for bit, masks and what is behind them included."""
    whole = fresh_bert()
    want = run(whole, regime=REGIMES[name]())
    model = fresh_bert()
    for step in (5, PER_EPOCH, PER_EPOCH + 4):
        with pytest.raises(KeyboardInterrupt):
            run(
                model,
                tmp_path,
                save_every=1,
                regime=REGIMES[name](),
                progress=stopping_at(step),
            )
        model = fresh_bert()
    got = run(model, tmp_path, save_every=1, regime=REGIMES[name]())
    assert same(model, whole)
    assert got["loss"] == want["loss"]
    found = sites(model, "weights")
    total = sum(s.units for s in found)
    assert abs(zeros_of(found).kept - 0.3) < len(found) / total
    back = load(tmp_path)
    assert same(back, model)
    told = json.loads((tmp_path / "plan.json").read_text())["origin"]["sparsity"]
    assert told == json.loads(json.dumps(sparsity(found)))
    assert abs(told["zero"] - 0.7) < len(found) / total
    assert not any(p._backward_hooks for p in model.parameters())


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_a_gradient_from_before_a_change_is_not_used(kind):
    """Several batches make one step, and the mask closes between two of them."""
    model = net()
    found = places(model)
    optimiser = OPTIMISERS[kind](model.parameters())
    with held(found, Mask.ones(found), optimiser) as hold:
        x, y = batch(0)
        nn.functional.cross_entropy(model(x), y).backward()
        mask = lowest(magnitudes(found), 0.5)
        hold.change(mask)
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
        for site in found:
            gone, w = ~mask[site.name], site.linear.weight
            assert not w[gone].any()
            moments = [v for v in optimiser.state[w].values() if v.shape == w.shape]
            assert moments
            assert not any(v[gone].any() for v in moments)


def slow_and_sparse(folder):
    slow(folder, regime=gradual())


def test_killed_and_still_the_same_weights(tmp_path):
    whole, model = fresh_bert(), fresh_bert()
    run(whole, regime=gradual())
    killed_at(6, tmp_path, "test_masking", "slow_and_sparse")
    run(model, tmp_path, save_every=4, regime=gradual())
    assert same(model, whole)


def half_and_sparse(folder):
    """One of two processes."""
    history = run(calm_bert(), folder, batch=7, save_every=3, regime=Movement(keep=0.3))
    print(json.dumps(history["epochs"]))


def test_two_processes_hold_one_mask(tmp_path):
    said = in_two_processes("test_masking", "half_and_sparse", tmp_path)
    alone = calm_bert()
    want = [row["loss"] for row in run(alone, batch=7, regime=Movement(keep=0.3))["epochs"]]
    assert [row["loss"] for row in said] == pytest.approx(want, rel=0.02)
    got, other = (zeros_of(sites(model, "weights")) for model in (load(tmp_path), alone))
    assert got.kept == other.kept
    agree = [(got[name] == other[name]).float().mean().item() for name in got]
    assert min(agree) > 0.9


def test_the_mask_follows_the_ramp_and_what_is_pruned_stays_pruned():
    model, kept, masks = fresh_bert(), [], []
    regime = gradual(every=3)
    found = sites(model, "weights")
    total = sum(s.units for s in found)

    def watch(now):
        mask = zeros_of(found)
        kept.append(sum(int(m.sum()) for m in mask.values()))
        masks.append(mask)

    run(model, regime=regime, progress=watch)
    ramp = Ramp(0.3, round(0.75 * 2 * PER_EPOCH), "cubic", every=3)
    assert kept == [round(ramp(step) * total) for step in range(1, 2 * PER_EPOCH + 1)]
    for before, after in pairwise(masks):
        assert all((after[name] <= before[name]).all() for name in before)


def test_straight_lets_weights_come_back():
    model, masks = calm_bert(), []
    found = sites(model, "weights")

    def watch(now):
        masks.append(zeros_of(found))

    regime = gradual(straight=True, initial=0.3, until=1.0, every=1)
    run(model, regime=regime, progress=watch, rate=3e-3)
    back = [(b[n] > a[n]).any() for a, b in pairwise(masks) for n in a]
    assert any(back)
    assert {round(m.kept, 3) for m in masks} == {0.3}


def test_one_shot_prunes_before_the_first_step_and_then_holds():
    model, want = fresh_bert(), fresh_bert()
    scores = criteria.load("magnitude")(want, sites(want, "weights"))
    mask = lowest(scores, 0.4)
    run(model, regime=gradual(keep=0.4, schedule="one-shot"))
    assert all(torch.equal(m, mask[n]) for n, m in zeros_of(sites(model, "weights")).items())


def test_the_clipped_norm_counts_only_the_living():
    """With everything pruned, only the rest has a gradient, and it is clipped by its own norm."""
    model, frozen = calm_bert(), calm_bert()
    run(model, regime=gradual(keep=0.0, schedule="one-shot"), epochs=1, clip=0.01)
    for site in sites(frozen, "weights"):
        site.linear.weight.data.zero_()
        site.linear.weight.requires_grad_(False)
    run(frozen, epochs=1, clip=0.01)
    for (name, a), (_, b) in zip(model.named_parameters(), frozen.named_parameters()):
        torch.testing.assert_close(a, b, msg=name)


def test_hold_keeps_the_zeros_that_came_with_the_model():
    model = fresh_bert()
    found = sites(model, "weights")
    mask = half(found)
    for site in found:
        site.linear.weight.data.mul_(mask[site.name])
    run(model, regime=Hold())
    got = zeros_of(found)
    assert all(torch.equal(got[name], mask[name]) for name in mask)


def sparse_bert(kept=0.3):
    model = calm_bert()
    found = sites(model, "weights")
    mask = lowest(magnitudes(found), kept)
    for site in found:
        site.linear.weight.data.mul_(mask[site.name])
    return model, found, mask


def test_hold_keeps_zeros_outside_the_blocks_and_freezes_nothing_that_begins_at_zero():
    model = calm_bert()
    words, places = (getattr(model.bert.embeddings, f"{w}_embeddings").weight for w in ("word", "position"))
    head, norm = model.classifier.weight, model.bert.encoder.layer[0].output.LayerNorm.weight
    other = model.bert.encoder.layer[1].output.LayerNorm
    with torch.no_grad():
        words[:, ::2], norm[:5], other.bias[:] = 0, 0, 0  # pruned, pruned, new
        words[0], places[3], head[:], other.weight[:] = 0, 0, 0, 0  # padding and all kinds of new
    zeros = {"words": words == 0, "norm": norm == 0}
    run(model, regime=Hold(), rate=1e-2)
    assert torch.equal(words == 0, zeros["words"])
    assert torch.equal(norm == 0, zeros["norm"])
    for new in (places[3], head, other.weight, other.bias):
        assert (new != 0).any()
    assert not any(p._backward_hooks for p in model.parameters())


@pytest.mark.parametrize("name", ["masked", "straight", "movement"])
def test_what_a_sparse_model_came_without_never_comes_back(name, tmp_path):
    """Asked for more than lives, at first for less too; also when it goes on with what was stopped."""
    for keep, initial in ((0.6, 1.0), (0.2, 0.25)):
        model, found, start = sparse_bert(0.3)
        with torch.no_grad():
            model.classifier.weight[:, ::2] = 0

        def learn(folder, model=model, keep=keep, initial=initial, **more):
            options = {"keep": keep, "initial": initial, "until": 1.0, "every": 1}
            regime = Movement(**options) if name == "movement" else None
            regime = regime or gradual(straight=name == "straight", **options)
            run(model, folder, save_every=1, rate=3e-3, regime=regime, **more)

        with pytest.raises(KeyboardInterrupt):
            learn(tmp_path / str(keep), progress=stopping_at(9))
        learn(tmp_path / str(keep))
        got = zeros_of(found)
        assert got.kept == pytest.approx(min(keep, start.kept), abs=1e-3)
        assert all((got[n] <= start[n]).all() for n in start)
        assert not model.classifier.weight[:, ::2].any()


@pytest.mark.parametrize("name", ["masked", "straight", "movement"])
def test_two_of_four_of_a_sparse_model(name):
    model, found, start = sparse_bert(0.3)
    if name == "movement":
        regime = Movement(keep=0.5, schedule="one-shot", scope="2:4")
    else:
        regime = gradual(keep=0.5, schedule="one-shot", choose=chooser("2:4"), straight=name == "straight")
    assert max(int(m.unflatten(1, (-1, 4)).sum(-1).max()) for m in start.values()) > 2
    run(model, regime=regime, epochs=1)
    got = zeros_of(found)
    assert all(int(m.unflatten(1, (-1, 4)).sum(-1).max()) == 2 for m in got.values())
    assert all((got[n] <= start[n]).all() for n in start)


def test_another_regime_is_another_training(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(fresh_bert(), tmp_path, save_every=1, regime=gradual(), progress=stopping_at(3))
    with pytest.raises(EspalierError, match=r"keep 0\.3, now 0\.2"):
        run(fresh_bert(), tmp_path, regime=gradual(keep=0.2))
    with pytest.raises(EspalierError, match="regime gradual, now not said"):
        run(fresh_bert(), tmp_path)
    with pytest.raises(EspalierError, match="until is a fraction"):
        gradual(until=2)
    with pytest.raises(EspalierError, match="no schedule 'cubist', did you mean 'cubic'"):
        gradual(schedule="cubist")


# ------------------------------------------------------------------------------------------ L1


@pytest.mark.parametrize("straight", [False, True])
def test_lasso_on_an_orthogonal_design(straight):
    """½‖y − Xw‖² + λ‖w‖₁ with XᵀX = 1 has a closed form: Xᵀy, softly thresholded at λ."""
    torch.manual_seed(0)
    x = torch.linalg.qr(torch.randn(40, 12, dtype=torch.float64))[0]
    y, strength, rate = torch.randn(40, dtype=torch.float64), 0.3, 0.5
    layer = nn.Linear(12, 1, bias=False, dtype=torch.float64)
    site = WeightSite("w", layer, "m n")
    optimiser = torch.optim.SGD(layer.parameters(), lr=rate)
    with held([site], Mask.ones([site]), optimiser, straight=straight) as hold:
        for _ in range(100):
            (0.5 * (y - layer(x)[:, 0]).square().sum()).backward()
            optimiser.step()
            optimiser.zero_grad()
            hold.shrink(rate * strength)
    fit = x.T @ y
    want = fit.sign() * (fit.abs() - strength).clamp(min=0)
    torch.testing.assert_close(layer.weight[0].detach(), want, rtol=0, atol=1e-12)
    assert torch.equal(layer.weight[0] == 0, want == 0)
    assert 0 < int((want == 0).sum()) < 12


def test_l1_alone_makes_exact_zeros_and_more_of_them_the_stronger_it_is():
    kept = []
    for strength in (0.0, 0.5, 5.0):
        model = calm_bert()
        regime = gradual(keep=1.0, l1=strength)
        run(model, regime=regime, epochs=1)
        kept.append(regime.outcome(None)["sparsity"]["zero"])
    assert kept[0] < 0.001
    assert kept[0] < kept[1] < kept[2]
    with pytest.raises(EspalierError, match="strength of a penalty"):
        gradual(l1=-1)


# ------------------------------------------------------------------------------------------ movement


def test_movement_scores_are_the_sum_of_gradient_times_weight():
    """With plain gradient descent, S_t = −Σ rate · ∂L/∂W' · W: counted along a training."""
    model, regime = calm_bert(), Movement(keep=0.5, until=1.0)
    seen = {}
    gather = regime.after_backward

    def watch(now_run):
        grads = {n: w.grad.clone() for n, w in regime.held.weights.items()}
        gather(now_run)
        for name, w in regime.held.weights.items():
            want = grads[name] * regime.held.behind[name]
            assert torch.equal(regime.scores[name].grad, want)
            assert (w.grad[~regime.held.mask[name]] == 0).all()
            assert torch.equal(w.grad[regime.held.mask[name]], grads[name][regime.held.mask[name]])
            seen[name] = True

    regime.after_backward = watch
    run(model, regime=regime, epochs=1)
    assert len(seen) == len(sites(model, "weights"))
    scores = torch.cat([s.detach().flatten() for s in regime.scores.values()])
    kept = torch.cat([m.flatten() for m in regime.held.mask.values()])
    assert scores[kept].min() >= scores[~kept].max()


def test_closed_weights_of_movement_decay_and_nothing_else():
    """One mask for the whole training, from before the first step: so there is no momentum yet."""
    model, regime, seen, rates = calm_bert(), None, [], []
    regime = Movement(keep=0.5, schedule="one-shot", until=0.0, every=10**6)

    def watch(now):
        rates.append(now["rate"])
        if now["step"] < 2 * PER_EPOCH:  # at the last one there is another mask
            seen.append({name: w.clone() for name, w in regime.held.behind.items()})

    before = {s.name: s.linear.weight.detach().clone() for s in sites(model, "weights")}
    gone = {name: w.abs() for name, w in before.items()}
    gone = {name: ~m for name, m in lowest(Scores(gone), 0.5).items()}
    run(model, regime=regime, rate=1e-2, decay=0.1, progress=watch)
    shrunk = np.prod([1 - 0.1 * rate for rate in rates[:-1]])
    for name, w in before.items():
        torch.testing.assert_close(seen[-1][name][gone[name]], w[gone[name]] * shrunk)
        assert not torch.allclose(seen[-1][name][~gone[name]], w[~gone[name]] * shrunk)


def test_movement_keeps_what_moves_away_from_zero():
    """One weight is pushed up, the other down; both begin alike."""
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[1.0, 1.1]])
    regime = Movement(keep=0.5)
    site = WeightSite("w", layer, "m n")
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.01)
    regime.sites, regime.stairs = [site], Ramp(0.5, 0)
    regime.start = Mask.ones([site])
    regime.held = Held([site], regime.start, straight=True).attach(optimiser)
    regime.scores = {"w": torch.zeros(1, 2, requires_grad=True)}
    optimiser.add_param_group({"params": list(regime.scores.values())})
    for _ in range(5):
        out = layer(torch.tensor([[1.0, 1.0]]))
        (layer.weight[0, 1] - layer.weight[0, 0] + 0 * out).sum().backward()
        regime.after_backward(None)
        optimiser.step()
        optimiser.zero_grad()
    regime._mask(1)
    assert regime.scores["w"][0, 0] > 0 > regime.scores["w"][0, 1]
    assert layer.weight[0, 0] > 1
    assert layer.weight[0, 1] == 0  # although it is the larger one
