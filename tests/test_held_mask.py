"""Training under masks: pruned weights are zero, whatever the optimizer, resuming and accelerate do."""

import copy
import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from test_training import (
    PER_EPOCH,
    bert_without_dropout,
    in_two_processes,
    killed_at,
    run,
    same,
    slow,
    stopping_at,
    tiny_bert,
)
from torch import nn

from espalier import Mask, Ramp, Scores, criteria, load, remove_lowest, sites
from espalier.architectures.site import WeightSite
from espalier.core.errors import ConflictError, InvalidValueError, UnknownNameError, UnsupportedError
from espalier.training import Gradual, HeldMask, Hold, Movement, held
from espalier.training.callbacks import count_zeros
from espalier.training.held_mask import mask_of_zeros
from espalier.training.optimizer import lr_factor

magnitude = criteria.load("magnitude")
OPTIMIZERS = {
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
    return [WeightSite(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]


def half(found, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Mask({s.name: torch.rand(s.shape, generator=generator) < 0.5 for s in found})


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 6, generator=generator), torch.randint(3, (16,), generator=generator)


def descend(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        x, y = batch(step)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def removed_weights(found, mask):
    return torch.cat([s.linear.weight[~mask[s.name]] for s in found])


def kept_weights(found, mask):
    return torch.cat([s.linear.weight[mask[s.name]] for s in found])


# ------------------------------------------------------------------------------------------ one step


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("ste", [False, True])
def test_zeros_stay_under_momentum_and_decay(name, ste):
    """The mask is set when moments are full, and every forward pass uses it."""
    model = net()
    found, optimizer, seen = places(model), OPTIMIZERS[name](model.parameters()), []
    descend(model, optimizer, 5)
    mask = half(found)
    before = kept_weights(found, mask).clone()

    def look(*_):
        seen.append(removed_weights(found, mask).abs().max().item())

    handle = model.register_forward_pre_hook(look)
    with held(found, mask, optimizer, ste=ste):
        descend(model, optimizer, 20, first=5)
    handle.remove()
    assert seen == [0.0] * 20
    assert torch.equal(removed_weights(found, mask), torch.zeros_like(removed_weights(found, mask)))
    assert not torch.equal(kept_weights(found, mask), before)
    assert (kept_weights(found, mask) != 0).all()
    descend(model, optimizer, 1)  # no longer held
    assert (removed_weights(found, mask) != 0).any()


def test_gradients_of_the_pruned():
    model = net()
    found = places(model)
    mask = half(found)
    for ste in (False, True):
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        with held(found, mask, optimizer, ste=ste):
            x, y = batch(0)
            nn.functional.cross_entropy(model(x), y).backward()
            got = {s.name: s.linear.weight.grad.clone() for s in found}
            optimizer.zero_grad()
        # The gradient of the product M⊙W, by autograd on a copy that multiplies.
        products = [(s.linear.weight * mask[s.name]).detach().requires_grad_() for s in found]
        hidden = nn.functional.linear(x, products[0], model[0].bias).tanh()
        out = nn.functional.linear(hidden, products[1], model[2].bias)
        wanted = torch.autograd.grad(nn.functional.cross_entropy(out, y), products)
        for site, want in zip(found, wanted):
            grad, removed = got[site.name], ~mask[site.name]
            torch.testing.assert_close(grad[~removed], want[~removed])
            if ste:
                torch.testing.assert_close(grad[removed], want[removed])
                assert (grad[removed] != 0).any()
            else:
                assert (grad[removed] == 0).all()


def test_held_is_the_same_as_training_the_product():
    """As if only the kept weights existed: plain SGD on M⊙W, written out."""
    model, other = net(), net()
    found, others = places(model), places(other)
    mask = half(found)
    with held(found, mask, torch.optim.SGD(model.parameters(), lr=0.1)) as hold:
        descend(model, hold._optimizer, 10)
    weights = [s.linear.weight.detach().clone() for s in others]
    for step in range(10):
        x, y = batch(step)
        for site, w in zip(others, weights):
            site.linear.weight.data = w * mask[site.name]
        nn.functional.cross_entropy(other(x), y).backward()
        with torch.no_grad():
            for site, w in zip(others, weights):
                w -= 0.1 * site.linear.weight.grad * mask[site.name]
                site.linear.bias -= 0.1 * site.linear.bias.grad
        other.zero_grad()
    for site, w in zip(found, weights):
        torch.testing.assert_close(site.linear.weight.detach(), w * mask[site.name])


def test_ste_weights_learn_behind_the_mask():
    """By hand: W −= lr · ∂L/∂(M⊙W), everywhere."""
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[2.0, 3.0]])
    site = WeightSite("w", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with held([site], Mask({"w": torch.tensor([[1, 0]])}), optimizer, ste=True) as hold:
        assert model.weight.tolist() == [[2.0, 0.0]]
        out = model(torch.tensor([[1.0, 4.0]]))
        assert out.item() == 2.0
        out.sum().backward()
        optimizer.step()
        assert model.weight.tolist() == [[1.5, 0.0]]
        assert hold.latent["w"].tolist() == [[1.5, 1.0]]
        hold.change(Mask({"w": torch.tensor([[0, 1]])}))
        assert model.weight.tolist() == [[0.0, 1.0]]


def test_what_opens_again_is_zero_and_without_momentum():
    model = net()
    found, optimizer = places(model), OPTIMIZERS["adamw"](model.parameters())
    ones, mask = Mask.ones(found), half(found)
    with held(found, ones, optimizer) as hold:
        descend(model, optimizer, 5)
        hold.change(mask)
        for site in found:
            for what in ("exp_avg", "exp_avg_sq"):
                moment = optimizer.state[site.linear.weight][what]
                assert (moment[~mask[site.name]] == 0).all()
                assert (moment[mask[site.name]] != 0).any()
        hold.change(ones)
        assert (removed_weights(found, mask) == 0).all()
        descend(model, optimizer, 1)
        assert (removed_weights(found, mask) != 0).any()


def test_infinite_weights_become_zero_too():
    model = net()
    model[0].weight.data[0, 0], model[0].weight.data[0, 1] = torch.inf, torch.nan
    found = places(model)
    mask = Mask.ones(found)
    mask["0"][0, :2] = False
    HeldMask(found, mask)
    assert model[0].weight[0, :2].tolist() == [0.0, 0.0]
    assert not torch.signbit(model[0].weight[0, :2]).any()


def test_scoring_in_between_changes_nothing(bert):
    """Criteria freeze the weights for a moment; the hooks outlive it."""
    found = sites(bert, "weights")
    mask = half(found)
    optimizer = torch.optim.AdamW(bert.parameters(), lr=1e-2)
    ids = torch.randint(0, 50, (4, 9))
    with held(found, mask, optimizer):
        magnitude(bert, found)
        bert(input_ids=ids, labels=torch.tensor([0, 1, 0, 1])).loss.backward()
        assert all((s.linear.weight.grad[~mask[s.name]] == 0).all() for s in found)
        assert any((s.linear.weight.grad != 0).any() for s in found)


def test_a_copy_and_a_state_dict_are_ordinary(bert):
    found = sites(bert, "weights")
    names = set(bert.state_dict())
    with held(found, half(found), torch.optim.AdamW(bert.parameters())):
        assert set(bert.state_dict()) == names
        other = copy.deepcopy(bert)
    assert same(other, bert)


@pytest.mark.parametrize("first", ["held", "prepared"])
def test_with_accelerate(first):
    from accelerate import Accelerator

    accelerator, model, alone = Accelerator(cpu=True), net(), net()
    found, others = places(model), places(alone)
    mask = half(found)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    if first == "held":
        hold = HeldMask(found, mask).attach(optimizer)
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    if first == "prepared":
        hold = HeldMask(found, mask).attach(optimizer)
    for step in range(10):
        x, y = batch(step)
        accelerator.backward(nn.functional.cross_entropy(wrapped(x), y))
        optimizer.step()
        optimizer.zero_grad()
    hold.release()
    plain = OPTIMIZERS["adamw"](alone.parameters())
    with held(others, mask, plain):
        descend(alone, plain, 10)
    assert (removed_weights(found, mask) == 0).all()
    assert same(model, alone)


def test_wrong_masks_are_refused():
    model = net()
    found = places(model)
    for mask in ({"0": torch.ones(8, 6)}, {"0": torch.ones(6, 8), "2": torch.ones(3, 8)}):
        with pytest.raises(InvalidValueError) as error:
            HeldMask(found, Mask(mask))
        assert error.value.parameter == "mask"
    with pytest.raises(UnknownNameError) as error:
        HeldMask(found, Mask({**Mask.ones(found), "1": torch.ones(1)}))
    assert (error.value.name, error.value.known) == ("1", ["0", "2"])
    with pytest.raises(UnsupportedError):
        HeldMask([found[0], WeightSite("other", found[0].linear)], Mask())


# ------------------------------------------------------------------------------------------ the loop


def gradual(**more):
    settings = {"remove": 0.7, "schedule": "cubic", "until": 0.75, "mask_interval": 2}
    return Gradual(magnitude, **{**settings, **more})


CALLBACKS = {
    "masked": gradual,
    "ste": lambda: gradual(ste=True),
    "layer": lambda: gradual(scope="layer", initial=0.5, schedule="cubed", until=1.0),
    "movement": lambda: Movement(0.7, until=0.75),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_resumed_anywhere_gives_the_same_weights(name, tmp_path):
    """Bit for bit, masks and latent weights included."""
    whole = tiny_bert()
    want = run(whole, callback=CALLBACKS[name]())
    model = tiny_bert()
    for step in (5, PER_EPOCH, PER_EPOCH + 4):
        with pytest.raises(KeyboardInterrupt):
            run(
                model,
                tmp_path,
                save_every=1,
                callback=CALLBACKS[name](),
                on_progress=stopping_at(step),
            )
        model = tiny_bert()
    got = run(model, tmp_path, save_every=1, callback=CALLBACKS[name]())
    assert same(model, whole)
    assert got["loss"] == want["loss"]
    found = sites(model, "weights")
    total = sum(s.units for s in found)
    assert abs(mask_of_zeros(found).kept - 0.3) < len(found) / total
    back = load(tmp_path)
    assert same(back, model)
    record = json.loads((tmp_path / "plan.json").read_text())["origin"]["sparsity"]
    assert record == json.loads(json.dumps(count_zeros(found)))
    assert abs(record["zero"] - 0.7) < len(found) / total
    assert not any(p._backward_hooks for p in model.parameters())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_gradient_from_before_a_change_is_not_used(kind):
    """Several batches make one step, and the mask changes between two of them."""
    model = net()
    found = places(model)
    optimizer = OPTIMIZERS[kind](model.parameters())
    with held(found, Mask.ones(found), optimizer) as hold:
        x, y = batch(0)
        nn.functional.cross_entropy(model(x), y).backward()
        mask = remove_lowest(magnitude(model, found), 0.5)
        hold.change(mask)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        for site in found:
            removed, w = ~mask[site.name], site.linear.weight
            assert not w[removed].any()
            moments = [v for v in optimizer.state[w].values() if v.shape == w.shape]
            assert moments
            assert not any(v[removed].any() for v in moments)


def slow_and_sparse(folder):
    slow(folder, callback=gradual())


def test_resumed_after_a_kill_gives_the_same_weights(tmp_path):
    whole, model = tiny_bert(), tiny_bert()
    run(whole, callback=gradual())
    killed_at(6, tmp_path, "test_held_mask", "slow_and_sparse")
    run(model, tmp_path, save_every=4, callback=gradual())
    assert same(model, whole)


def half_and_sparse(folder):
    """One of two processes."""
    history = run(bert_without_dropout(), folder, batch_size=7, save_every=3, callback=Movement(0.7))
    print(json.dumps(history["epochs"]))


def test_two_processes_hold_one_mask(tmp_path):
    got_rows = in_two_processes("test_held_mask", "half_and_sparse", tmp_path)
    alone = bert_without_dropout()
    want = [row["loss"] for row in run(alone, batch_size=7, callback=Movement(0.7))["epochs"]]
    assert [row["loss"] for row in got_rows] == pytest.approx(want, rel=0.02)
    got, other = (mask_of_zeros(sites(model, "weights")) for model in (load(tmp_path), alone))
    assert got.kept == other.kept
    agree = [(got[name] == other[name]).float().mean().item() for name in got]
    assert min(agree) > 0.9


def test_the_mask_follows_the_ramp_and_what_is_pruned_stays_pruned():
    model, kept, masks = tiny_bert(), [], []
    callback = gradual(mask_interval=3)
    found = sites(model, "weights")
    total = sum(s.units for s in found)

    def watch(now):
        mask = mask_of_zeros(found)
        kept.append(sum(int(m.sum()) for m in mask.values()))
        masks.append(mask)

    run(model, callback=callback, on_progress=watch)
    ramp = Ramp(0.7, round(0.75 * 2 * PER_EPOCH), "cubic", every=3)
    assert kept == [round((1 - ramp(step)) * total) for step in range(1, 2 * PER_EPOCH + 1)]
    for before, after in pairwise(masks):
        assert all((after[name] <= before[name]).all() for name in before)


def test_ste_lets_weights_come_back():
    model, masks = bert_without_dropout(), []
    found = sites(model, "weights")

    def watch(now):
        masks.append(mask_of_zeros(found))

    callback = gradual(ste=True, initial=0.7, until=1.0, mask_interval=1)
    run(model, callback=callback, on_progress=watch, lr=3e-3)
    back = [(b[n] > a[n]).any() for a, b in pairwise(masks) for n in a]
    assert any(back)
    assert {round(m.kept, 3) for m in masks} == {0.3}


def test_one_shot_prunes_before_the_first_step_and_then_holds():
    model, want = tiny_bert(), tiny_bert()
    scores = magnitude(want, sites(want, "weights"))
    mask = remove_lowest(scores, 0.6)
    run(model, callback=gradual(remove=0.6, schedule="one-shot"))
    assert all(torch.equal(m, mask[n]) for n, m in mask_of_zeros(sites(model, "weights")).items())


def test_the_clipped_norm_counts_only_kept_weights():
    """With everything pruned, only the rest has a gradient, and it is clipped by its own norm."""
    model, frozen = bert_without_dropout(), bert_without_dropout()
    run(model, callback=gradual(remove=1.0, schedule="one-shot"), epochs=1, clip=0.01)
    for site in sites(frozen, "weights"):
        site.linear.weight.data.zero_()
        site.linear.weight.requires_grad_(False)
    run(frozen, epochs=1, clip=0.01)
    for (name, a), (_, b) in zip(model.named_parameters(), frozen.named_parameters()):
        torch.testing.assert_close(a, b, msg=name)


def test_hold_keeps_the_zeros_of_a_sparse_model():
    model = tiny_bert()
    found = sites(model, "weights")
    mask = half(found)
    for site in found:
        site.linear.weight.data.mul_(mask[site.name])
    run(model, callback=Hold())
    got = mask_of_zeros(found)
    assert all(torch.equal(got[name], mask[name]) for name in mask)


def sparse_bert(removed=0.7):
    model = bert_without_dropout()
    found = sites(model, "weights")
    mask = remove_lowest(magnitude(model, found), removed)
    for site in found:
        site.linear.weight.data.mul_(mask[site.name])
    return model, found, mask


def test_hold_keeps_zeros_outside_the_blocks_and_freezes_nothing_that_starts_at_zero():
    model = bert_without_dropout()
    words, places = (getattr(model.bert.embeddings, f"{w}_embeddings").weight for w in ("word", "position"))
    head, norm = model.classifier.weight, model.bert.encoder.layer[0].output.LayerNorm.weight
    other = model.bert.encoder.layer[1].output.LayerNorm
    with torch.no_grad():
        words[:, ::2], norm[:5], other.bias[:] = 0, 0, 0  # pruned, pruned, new
        words[0], places[3], head[:], other.weight[:] = 0, 0, 0, 0  # padding and all kinds of new
    zeros = {"words": words == 0, "norm": norm == 0}
    run(model, callback=Hold(), lr=1e-2)
    assert torch.equal(words == 0, zeros["words"])
    assert torch.equal(norm == 0, zeros["norm"])
    for new in (places[3], head, other.weight, other.bias):
        assert (new != 0).any()
    assert not any(p._backward_hooks for p in model.parameters())


@pytest.mark.parametrize("name", ["masked", "ste", "movement"])
def test_what_is_zero_at_the_start_never_comes_back(name, tmp_path):
    """When less is to be removed than is zero already, at the end or at the start; also after resuming."""
    for remove, initial in ((0.4, 0.0), (0.8, 0.75)):
        model, found, start = sparse_bert(0.7)
        with torch.no_grad():
            model.classifier.weight[:, ::2] = 0

        def learn(folder, model=model, remove=remove, initial=initial, **more):
            options = {"remove": remove, "initial": initial, "until": 1.0, "mask_interval": 1}
            callback = Movement(**options) if name == "movement" else None
            callback = callback or gradual(ste=name == "ste", **options)
            run(model, folder, save_every=1, lr=3e-3, callback=callback, **more)

        with pytest.raises(KeyboardInterrupt):
            learn(tmp_path / str(remove), on_progress=stopping_at(9))
        learn(tmp_path / str(remove))
        got = mask_of_zeros(found)
        assert got.kept == pytest.approx(min(1 - remove, start.kept), abs=1e-3)
        assert all((got[n] <= start[n]).all() for n in start)
        assert not model.classifier.weight[:, ::2].any()


@pytest.mark.parametrize("name", ["masked", "ste", "movement"])
def test_two_of_four_of_a_sparse_model(name):
    model, found, start = sparse_bert(0.7)
    if name == "movement":
        callback = Movement(0.5, schedule="one-shot", scope="2:4")
    else:
        callback = gradual(remove=0.5, schedule="one-shot", scope="2:4", ste=name == "ste")
    assert max(int(m.unflatten(1, (-1, 4)).sum(-1).max()) for m in start.values()) > 2
    run(model, callback=callback, epochs=1)
    got = mask_of_zeros(found)
    assert all(int(m.unflatten(1, (-1, 4)).sum(-1).max()) == 2 for m in got.values())
    assert all((got[n] <= start[n]).all() for n in start)


def test_another_callback_is_another_training(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tiny_bert(), tmp_path, save_every=1, callback=gradual(), on_progress=stopping_at(3))
    with pytest.raises(ConflictError) as error:
        run(tiny_bert(), tmp_path, callback=gradual(remove=0.8))
    assert error.value.differences == "remove 0.7, now 0.8"
    with pytest.raises(ConflictError) as error:
        run(tiny_bert(), tmp_path)
    assert error.value.differences.startswith("callback gradual, now not set")
    for wrong in ({"until": 2}, {"schedule": "cubist"}, {"remove": 2}, {"l1": -1}):
        with pytest.raises(InvalidValueError) as error:
            gradual(**wrong)
        assert error.value.parameter == next(iter(wrong))


# ------------------------------------------------------------------------------------------ L1


@pytest.mark.parametrize("ste", [False, True])
def test_lasso_on_an_orthogonal_design(ste):
    """½‖y − Xw‖² + λ‖w‖₁ with XᵀX = 1 has a closed form: Xᵀy, softly thresholded at λ."""
    torch.manual_seed(0)
    x = torch.linalg.qr(torch.randn(40, 12, dtype=torch.float64))[0]
    y, strength, rate = torch.randn(40, dtype=torch.float64), 0.3, 0.5
    layer = nn.Linear(12, 1, bias=False, dtype=torch.float64)
    site = WeightSite("w", layer)
    optimizer = torch.optim.SGD(layer.parameters(), lr=rate)
    with held([site], Mask.ones([site]), optimizer, ste=ste) as hold:
        for _ in range(100):
            (0.5 * (y - layer(x)[:, 0]).square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
            hold.shrink(rate * strength)
    fit = x.T @ y
    want = fit.sign() * (fit.abs() - strength).clamp(min=0)
    torch.testing.assert_close(layer.weight[0].detach(), want, rtol=0, atol=1e-12)
    assert torch.equal(layer.weight[0] == 0, want == 0)
    assert 0 < int((want == 0).sum()) < 12


def test_l1_alone_makes_exact_zeros_and_more_of_them_the_stronger_it_is():
    kept = []
    for strength in (0.0, 0.5, 5.0):
        model = bert_without_dropout()
        callback = gradual(remove=0.0, l1=strength)
        run(model, callback=callback, epochs=1)
        kept.append(callback.summary()["sparsity"]["zero"])
    assert kept[0] < 0.001
    assert kept[0] < kept[1] < kept[2]


# ------------------------------------------------------------------------------------------ movement


def test_movement_scores_are_the_sum_of_gradient_times_weight():
    """With plain gradient descent, S_t = −Σ lr · ∂L/∂W' · W: counted along a training."""
    model, callback = bert_without_dropout(), Movement(0.5, until=1.0)
    seen = {}
    gather = callback.after_backward

    def watch(now_run):
        grads = {n: w.grad.clone() for n, w in callback.held.weights.items()}
        gather(now_run)
        for name, w in callback.held.weights.items():
            want = grads[name] * callback.held.latent[name]
            assert torch.equal(callback.scores[name].grad, want)
            assert (w.grad[~callback.held.mask[name]] == 0).all()
            assert torch.equal(w.grad[callback.held.mask[name]], grads[name][callback.held.mask[name]])
            seen[name] = True

    callback.after_backward = watch
    run(model, callback=callback, epochs=1)
    assert len(seen) == len(sites(model, "weights"))
    scores = torch.cat([s.detach().flatten() for s in callback.scores.values()])
    kept = torch.cat([m.flatten() for m in callback.held.mask.values()])
    assert scores[kept].min() >= scores[~kept].max()


def test_pruned_weights_of_movement_decay_and_nothing_else():
    """One mask for the whole training, from before the first step: so there is no momentum yet."""
    model, seen, steps = bert_without_dropout(), [], 2 * PER_EPOCH
    callback = Movement(0.5, schedule="one-shot", until=0.0, mask_interval=10**6)

    def watch(progress):
        if progress.done < steps:  # at the last one there is another mask
            seen.append({name: w.clone() for name, w in callback.held.latent.items()})

    before = {s.name: s.linear.weight.detach().clone() for s in sites(model, "weights")}
    smallest = remove_lowest(Scores({name: w.abs() for name, w in before.items()}), 0.5)
    removed = {name: ~m for name, m in smallest.items()}
    run(model, callback=callback, lr=1e-2, weight_decay=0.1, on_progress=watch)
    shrunk = np.prod([1 - 0.1 * 1e-2 * lr_factor(step, steps, 0.1) for step in range(steps - 1)])
    for name, w in before.items():
        torch.testing.assert_close(seen[-1][name][removed[name]], w[removed[name]] * shrunk)
        assert not torch.allclose(seen[-1][name][~removed[name]], w[~removed[name]] * shrunk)


def test_movement_keeps_what_moves_away_from_zero():
    """One weight is pushed up, the other down; both start alike."""
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[1.0, 1.1]])
    callback = Movement(0.5)
    site = WeightSite("w", layer)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    callback.sites, callback.ramp = [site], Ramp(0.5, 0)
    callback.start = Mask.ones([site])
    callback.held = HeldMask([site], callback.start, ste=True).attach(optimizer)
    callback.scores = {"w": torch.zeros(1, 2, requires_grad=True)}
    optimizer.add_param_group({"params": list(callback.scores.values())})
    for _ in range(5):
        out = layer(torch.tensor([[1.0, 1.0]]))
        (layer.weight[0, 1] - layer.weight[0, 0] + 0 * out).sum().backward()
        callback.after_backward(None)
        optimizer.step()
        optimizer.zero_grad()
    callback._update_mask(1)
    assert callback.scores["w"][0, 0] > 0 > callback.scores["w"][0, 1]
    assert layer.weight[0, 0] > 1
    assert layer.weight[0, 1] == 0  # although it is the larger one
