"""Hard-concrete gates: their chances and penalty, learned with the weights, and cut in the end."""

import copy
import math

import pytest
import torch
from test_training import sentences, words

from espalier import Mask, cost, load, masked, plan_of, sites
from espalier.core.errors import InvalidValueError, UnknownNameError
from espalier.engine.gates import multiplied
from espalier.engine.hard_concrete import decide, expected_open, sample, scale_for
from espalier.testing.tiny import inputs, outputs, same, tiny
from espalier.training import Gates, train

SETTINGS = {"epochs": 2, "batch_size": 8, "lr": 1e-3, "max_length": 16}
MODELS = {
    "bert": ("AutoModelForSequenceClassification", "classification"),
    "gpt2": ("AutoModelForCausalLM", "language"),
    "all_attention": ("AutoModelForCausalLM", "language"),
}


def run(kind, gates, **settings):
    top, task = MODELS[kind]
    model = tiny(kind, top)
    history = train(model, words(), sentences(40), kind=task, **{**SETTINGS, **settings}, callback=gates)
    return model, history


class Watched(Gates):
    """Remembers the gates of every step, and the outputs just before the cut."""

    def on_start(self, run):
        super().on_start(run)
        self.seen, self.before = [], None

    def after_step(self, run):
        super().after_step(run)
        self.seen.append(torch.cat([gate.detach().clone() for gate in self.log_alpha.values()]))

    def after_training(self, run):
        self.before = outputs(run.model.eval(), inputs(run.model))
        super().after_training(run)


def test_gates_are_open_as_often_as_expected():
    torch.manual_seed(0)
    log_alpha = torch.tensor([-2.0, -0.5, 0.0, 1.0, 2.0])
    drawn = sample(log_alpha.expand(20000, -1))
    assert set(drawn.flatten().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(drawn.mean(0), expected_open(log_alpha), atol=0.012, rtol=0)
    assert decide(log_alpha).tolist() == [False, False, True, True, True]


def test_both_forms_of_the_penalty():
    two = torch.tensor([2.0, 0.0])
    torch.testing.assert_close(expected_open(two), torch.tensor([0.8808, 0.5]), atol=1e-4, rtol=0)
    published = expected_open(two, "published")
    torch.testing.assert_close(published, torch.tensor([0.9426, 0.6897]), atol=1e-4, rtol=0)
    with pytest.raises(UnknownNameError):
        expected_open(two, "soft")


def test_the_gradient_passes_straight_through():
    log_alpha = torch.zeros(1000, requires_grad=True)
    torch.manual_seed(0)
    gates = sample(log_alpha)
    gates.sum().backward()
    closed = gates == 0
    assert (log_alpha.grad[closed] > 0).any()
    assert (log_alpha.grad >= 0).all()


@pytest.mark.parametrize(("opened", "scale"), [(8, 1.0), (4, 2.0), (1, 8.0), (0, 1.0)])
def test_scale(opened, scale):
    assert scale_for(torch.arange(8) < opened) == scale


def test_the_penalty_starts_late_and_rises():
    gates = Gates(penalty=0.02, delay=0.2, warmup=0.4)
    gates._steps = 10
    found = [gates.strength(step) for step in range(10)]
    assert found == pytest.approx([0, 0, 0.005, 0.01, 0.015, *[0.02] * 5])
    gates = Gates(penalty=0.02, warmup=0)
    gates._steps = 10
    assert gates.strength(0) == 0.02


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_without_a_penalty_only_the_loss_moves_gates(penalty):
    """The gates of a layer whose output is ignored have no gradient but that of the penalty."""

    class Ignored(Watched):
        def after_backward(self, run):
            for gate in self.log_alpha.values():
                gate.grad = None
            super().after_backward(run)

    gates = Ignored(penalty=penalty, warmup=0)
    run("bert", gates, epochs=1)
    moved = (gates.seen[-1] != 2.0).all()
    assert moved == (penalty > 0)
    assert (gates.seen[-1] <= 2.0).all()


@pytest.mark.parametrize("target", ["heads", "neurons"])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_target_is_reached_and_the_cut_model_is_the_gated_one(kind, target):
    gates = Watched(0.4, target=target)
    model, _ = run(kind, gates)
    before = getattr(cost(tiny(kind)), target)
    assert getattr(cost(model), target) == round(0.6 * before)
    same(outputs(model, inputs(model)), gates.before, "cut and folded")
    assert not any(hooks for m in model.modules() for hooks in m._forward_pre_hooks.values())
    last = gates.seen[gates._end - 1]
    assert float(expected_open(last).mean()) == pytest.approx(0.6, abs=0.5 / len(last))
    assert gates.summary()["gates"]["kept"] == {s.name: s.units for s in sites(model, target)}


def test_an_all_attention_model_and_memory():
    gates = Watched(0.5)
    model, _ = run("all_attention", gates, epochs=1)
    assert cost(model).heads == 9
    same(outputs(model, inputs(model)), gates.before, "cut and folded")


def test_closed_gates_are_removed_heads_and_scales_are_folded():
    """Gated and scaled by hand ≡ cut with a scaled output projection."""
    model = tiny("bert")
    given, found = inputs(model), sites(model, "heads")
    mask = Mask({s.name: torch.tensor([1, 0, 1, 1, 0, 0]) for s in found})
    with masked(model, mask):
        unscaled = outputs(model, given)
    hooks = [multiplied(s, lambda s=s: mask[s.name].float() * scale_for(mask[s.name])) for s in found]
    want = outputs(model, given)
    for hook in hooks:
        hook.remove()
    gates = Gates(0.5)
    gates.units, gates.chosen = found, mask
    gates.after_training(type("Run", (), {"model": model})())
    same(outputs(model, given), want, "folded")
    assert not torch.allclose(unscaled[0], want[0], atol=1e-3)
    assert [s.units for s in sites(model, "heads")] == [3, 3, 3]


def test_each_technique_has_a_switch():
    plain = Watched(penalty=1.0, warmup=0, init=0.0, scaled=False)
    run("bert", plain, epochs=1)
    with_all = Watched(penalty=1.0, warmup=0.9)
    run("bert", with_all, epochs=1)
    assert plain.seen[0].mean() < 0.1 < 1 < with_all.seen[0].mean()
    same_start = copy.deepcopy(tiny("bert"))
    gates = Gates(0.5, scaled=False)
    gates.units = sites(same_start, "heads")
    gates.chosen = Mask({s.name: torch.arange(6) < 3 for s in gates.units})
    weight = gates.units[0].module("write").weight.clone()
    gates.after_training(type("Run", (), {"model": same_start})())
    assert torch.equal(gates.units[0].module("write").weight, weight[:, :24])


def test_a_penalty_that_closes_everything_leaves_a_model_that_runs(caplog):
    model, _ = run("bert", Gates(penalty=100.0, warmup=0, gate_lr=1.0, until=1.0))
    assert cost(model).heads == 0
    assert "penalty" in caplog.text
    assert all(torch.isfinite(t).all() for t in outputs(model, inputs(model)))


def test_a_layer_may_lose_all_its_heads():
    class Chosen(Gates):
        def choose(self):
            return Mask({s.name: torch.full((6,), i != 1) for i, s in enumerate(self.units)})

    model, _ = run("gpt2", Chosen(0.3), epochs=1)
    assert [s.units for s in sites(model, "heads")] == [6, 0, 6]


@pytest.mark.parametrize("stop", [3, 9])
def test_it_resumes_bit_for_bit(tmp_path, stop):
    class Stop(Gates):
        def after_step(self, run):
            super().after_step(run)
            if run.step == stop:
                raise KeyboardInterrupt

        def settings(self):
            return super().settings() | {"callback": "gates"}

    want, _ = run("bert", Gates(0.5))
    with pytest.raises(KeyboardInterrupt):
        run("bert", Stop(0.5), folder=tmp_path / "out", save_every=1)
    gates = Gates(0.5)
    got, _ = run("bert", gates, folder=tmp_path / "out", save_every=1)
    again = load(tmp_path / "out")
    for model in (got, again):
        assert plan_of(model).keep == plan_of(want).keep
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), want.parameters()))
    finished, _ = run("bert", Gates(0.5), folder=tmp_path / "out", save_every=1)  # nothing to do
    assert all(torch.equal(a, b) for a, b in zip(finished.parameters(), want.parameters()))


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({}, "remove"),
        ({"remove": 0.5, "penalty": 0.1}, "remove"),
        ({"remove": 1.5}, "remove"),
        ({"penalty": -1.0}, "penalty"),
        ({"penalty": 1.0, "form": "soft"}, "form"),
        ({"remove": 0.5, "until": 0.0}, "until"),
        ({"remove": 0.5, "gate_lr": 0.0}, "gate_lr"),
        ({"remove": 0.5, "warmup": math.inf}, "warmup"),
    ],
)
def test_wrong_settings(options, parameter):
    with pytest.raises(InvalidValueError) as error:
        Gates(**options)
    assert error.value.parameter == parameter
