"""Repair in closed form: against brute force, over the whole registry, and where nothing may change."""

import contextlib
import copy
import logging
from types import SimpleNamespace

import pytest
import torch
import toys

from espalier import Mask, cut, sites
from espalier.architectures.table import architectures
from espalier.core.errors import DataError, InvalidValueError, UnknownNameError
from espalier.engine.cache import ActivationCache, CachedPass
from espalier.engine.stream import follow_writers
from espalier.experiment import repair as repair_data
from espalier.experiment.repair import repair_batches
from espalier.pruning.least_squares import FITS, Sums
from espalier.pruning.repair import repair
from espalier.testing.tiny import inputs, outputs, tiny, uneven


def batches_for(model, count=4, examples=5):
    """Inputs of other numbers in every batch; ends of sentences and padding stay."""
    out = []
    for seed in range(count):
        batch, draw = inputs(model, batch=examples), torch.Generator().manual_seed(seed)
        for name, value in batch.items():
            if name.endswith("input_ids"):
                batch[name] = torch.where(
                    value == 2, value, torch.randint(4, 64, value.shape, generator=draw)
                )
            elif isinstance(value, torch.Tensor) and value.is_floating_point():
                batch[name] = torch.randn(value.shape, generator=draw)
        out.append(batch)
    return out


def without(model, **removed):
    """Return a copy cut to the given units: heads={0: [1, 2]} removes two heads of the first layer."""
    small = copy.deepcopy(model)
    for target, units in removed.items():
        cut(small, Mask.without(sites(small, target), units), report=False)
    return small


def difference(model, other, batches):
    return sum(float((outputs(model, b)[0] - outputs(other, b)[0]).square().mean()) for b in batches)


@pytest.mark.parametrize("kind", sorted(architectures()))
def test_every_architecture_comes_nearer_to_the_dense_model(kind):
    model = tiny(kind)
    data = batches_for(model)
    before = [p.clone() for p in model.parameters()]
    small = cut(copy.deepcopy(model), uneven(sites(model), 0), report=False)
    shapes = {n: p.shape for n, p in small.named_parameters()}
    as_cut = difference(small, model, data)
    done = repair(small, model, data)
    assert difference(small, model, data) < as_cut
    assert all(one.after <= one.before for one in done)
    assert any(one.strength is not None for one in done)
    assert {n: p.shape for n, p in small.named_parameters()} == shapes
    assert [p.requires_grad for p in small.parameters()] == [p.requires_grad for p in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before))


@pytest.mark.parametrize(
    ("kind", "at", "side"),
    [
        ("bert", "encoder.layer.1.attention.output.LayerNorm", "input"),
        ("gpt2", "h.1.ln_2", "input"),
        ("gptj", "h.1", "output"),
        ("gpt_neox", "layers.1", "output"),
        ("bloom", "h.1.post_attention_layernorm", "input"),
        ("llama", "layers.1.post_attention_layernorm", "input"),
        ("opt", "decoder.layers.1.final_layer_norm", "input"),
        ("t5", "encoder.block.1.layer.1.layer_norm", "input"),
    ],
)
def test_the_stream_is_what_the_model_reads_next(kind, at, side):
    model = tiny(kind)
    site = next(s for s in sites(model, "heads") if "1" in s.path)
    seen = []

    def look(_, args, out):
        seen.append(args[0] if side == "input" else out[0] if isinstance(out, tuple) else out)

    with model.get_submodule(at).register_forward_hook(look):
        (write,) = follow_writers(model, [site.module("write")], inputs(model))[site.module("write")]
    assert write.added
    assert torch.equal(write.stream.flatten(), seen[0].flatten())


def test_a_norm_between_the_writer_and_the_addition_ends_the_trail():
    model = tiny("gemma2")
    writer = sites(model, "heads")[0].module("write")
    (write,) = follow_writers(model, [writer], inputs(model), uses=1)[writer]
    assert (write.added, write.done) == (False, True)


@pytest.mark.parametrize(
    ("kind", "layer", "biased"), [("bert", 1, True), ("qwen2", 1, False), ("gpt2", 0, True)]
)
def test_the_fit_is_that_of_brute_force(kind, layer, biased):
    """Rows of all real tokens, the penalty as rows of its own, in float64."""
    model = tiny(kind).double()
    data = batches_for(model)
    for batch in data:
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    small = without(model, neurons={layer: range(0, 40, 2)})
    site, whole = (sites(m, "neurons")[layer] for m in (small, model))
    writer = site.module("write")
    x, d = [], []
    for batch in data:
        (now,) = follow_writers(small, [writer], batch)[writer]
        (then,) = follow_writers(model, [whole.module("write")], batch)[whole.module("write")]
        x.append(now.read.flatten(0, 1))
        d.append((then.stream - now.stream).flatten(0, 1))
    x, d, old = torch.cat(x), torch.cat(d), site.weight("write")[:, 0].detach().clone()
    if biased:
        x, d = x - x.mean(0), d - d.mean(0)
    penalty = (0.1 * x.square().sum(0).mean()).sqrt() * torch.eye(x.shape[1], dtype=x.dtype)
    want = torch.linalg.lstsq(torch.cat([x, penalty]), torch.cat([d, d.new_zeros(len(penalty), d.shape[1])]))
    (done,) = repair(small, model, data, strengths=[0.1])
    assert done.rows == len(x)
    assert done.strength == 0.1
    torch.testing.assert_close(sites(small, "neurons")[layer].weight("write")[:, 0], old + want.solution)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "mpnet", "gpt2", "llama"])
def test_blocks_of_the_unpruned_model_run_once_for_each_batch(kind):
    model = tiny(kind)
    small, data = cut(copy.deepcopy(model), uneven(sites(model), 0), report=False), batches_for(model)
    blocks, forwards = dict.fromkeys(site.block for site in sites(model)), []
    with contextlib.ExitStack() as hooks:
        for number, block in enumerate(blocks):
            inner = next(module for module in block.modules() if not list(module.children()))
            hooks.enter_context(inner.register_forward_hook(lambda *_, n=number: forwards.append(n)))
        done = repair(small, model, data)
    assert len(done) > len(blocks) > 1
    assert all("forward" not in block.__dict__ for block in blocks)
    assert [forwards.count(n) for n in range(len(blocks))] == [len(data)] * len(blocks)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "t5", "bart"])
def test_a_repair_keeps_the_outputs_of_few_blocks(kind, monkeypatch):
    """The same weights, whatever is kept: two blocks' outputs, all of them, none."""
    layers = {"num_hidden_layers": 4} if kind in ("bert", "llama") else {}
    model, found, most = tiny(kind, **layers), [], []
    data = batches_for(model)
    keep = CachedPass._keep

    def watched(self, *given):
        keep(self, *given)
        for entries in self.cache.kept.values():
            most.append(len({id(entry.out) for entry in entries}))

    monkeypatch.setattr(CachedPass, "_keep", watched)
    for way in ("few", "all", "none"):
        if way == "all":
            monkeypatch.setattr(ActivationCache, "forget_below", lambda *_: None)
        if way == "none":
            monkeypatch.setattr("espalier.engine.cache.BUDGET", 0)
            monkeypatch.setattr(
                ActivationCache, "usable", property(lambda _: False, lambda *_: None), raising=False
            )
        small = cut(copy.deepcopy(model), uneven(sites(model), 0), report=False)
        repair(small, model, data)
        found.append([p.detach().clone() for p in small.parameters()])
        if way == "few" and kind in ("bert", "llama"):
            assert max(most) <= 3
    for a, b, c in zip(*found):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c)


def test_scale_and_bias_are_those_of_brute_force():
    draw = torch.Generator().manual_seed(0)
    x, d, w = (torch.randn(s, generator=draw, dtype=torch.float64) for s in ((50, 6), (50, 4), (6, 4)))
    owners, sums = torch.tensor([0, 0, 1, 1, 2, 2]), Sums.zeros(6, 4)
    sums.add(x[:20], d[:20])
    sums.add(x[20:], d[20:])
    by_unit = torch.stack([(x[:, owners == u] @ w[owners == u]).flatten() for u in range(3)], 1)
    want = torch.linalg.lstsq(by_unit, d.reshape(-1, 1)).solution[:, 0]
    change = FITS["scale"](sums, w, owners, True, 0.0)
    torch.testing.assert_close(change[0], want[owners][:, None] * w)
    torch.testing.assert_close(FITS["bias"](sums, w, owners, True, 0.0)[1], d.mean(0))
    for how in FITS:
        change = FITS[how](sums, w, owners, True, 0.1)
        left = d - x @ change[0] - change[1]
        assert sums.loss(change) == pytest.approx(float(left.square().mean()))


def test_a_model_that_lost_nothing_keeps_every_bit(bert):
    small = copy.deepcopy(bert)
    assert repair(small, bert, batches_for(bert)) == []
    assert all(torch.equal(a, b) for a, b in zip(small.parameters(), bert.parameters()))


def test_below_the_first_cut_nothing_changes_even_if_every_sublayer_is_asked_for(bert):
    small = without(bert, neurons={1: [0, 1, 2]})
    done = repair(small, bert, batches_for(bert), every=True)
    assert [one.site for one in done] == [s.name for s in sites(bert)][3:]
    changed = {
        n
        for n, p in small.named_parameters()
        if p.shape != dict(bert.named_parameters())[n].shape
        or not torch.equal(p, dict(bert.named_parameters())[n])
    }
    assert not any("layer.0" in name for name in changed)


def test_numbers_that_are_not_finite_change_nothing(bert):
    data = batches_for(bert)
    small = without(bert, heads={0: [0]}, neurons={1: [0, 1]})
    with torch.no_grad():
        bert.base_model.encoder.layer[1].output.dense.bias[0] = torch.nan
    before = [p.clone() for p in small.parameters()]
    with pytest.raises(DataError):
        repair(small, bert, data)
    assert all(torch.equal(a, b) for a, b in zip(small.parameters(), before))


def test_padding_and_tokens_that_the_classifier_does_not_read_are_left_out(bert):
    data = batches_for(bert)
    for batch in data:
        batch["attention_mask"][0, :3] = 1  # the first token is never padding
    removed = {"heads": {0: [0, 1], 2: [3]}, "neurons": {2: range(0, 40, 3)}}
    small, other = without(bert, **removed), without(bert, **removed)
    done = repair(small, bert, data)
    for batch in data:
        batch["input_ids"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 7)
    repair(other, bert, data)
    for a, b in zip(small.parameters(), other.parameters()):
        torch.testing.assert_close(a, b)
    real = sum(int(batch["attention_mask"].sum()) for batch in data)
    assert [one.rows for one in done] == [real, 20, 20]  # in the last block the first token of 20 examples


def test_a_sublayer_without_units_is_repaired_by_its_bias(bert):
    small = without(bert, heads={1: range(6)})
    data = batches_for(bert)
    as_cut = difference(small, bert, data)
    (done,) = repair(small, bert, data)
    assert done.columns == 0
    assert difference(small, bert, data) < as_cut


def test_a_matrix_without_bias_gets_none():
    model = tiny("qwen2")
    small = without(model, neurons={0: range(20)})
    names = {name for name, _ in small.named_parameters()}
    repair(small, model, batches_for(model))
    assert {name for name, _ in small.named_parameters()} == names


@pytest.mark.parametrize("how", ["bias", "scale"])
def test_the_cheap_variants_help_less(bert, how):
    data, removed = batches_for(bert), {1: range(0, 40, 2)}
    cheap, full = without(bert, neurons=removed), without(bert, neurons=removed)
    as_cut = difference(cheap, bert, data)
    (little,), (much,) = repair(cheap, bert, data, how), repair(full, bert, data)
    assert much.after < little.after < little.before
    assert difference(cheap, bert, data) < as_cut


def test_fewer_tokens_than_columns_are_said(bert, caplog):
    with caplog.at_level(logging.WARNING, "espalier"):
        repair(without(bert, neurons={2: [0]}), bert, batches_for(bert))
    assert len(caplog.records) == 1


def test_bad_input(bert):
    data = batches_for(bert)
    with pytest.raises(UnknownNameError):
        repair(without(bert, heads={0: [0]}), bert, data, "magic")
    with pytest.raises(InvalidValueError):
        repair(bert, without(bert, heads={0: [0]}), data)
    with pytest.raises(DataError):
        repair(without(bert, heads={0: [0]}), bert, [])


def test_a_refit_reads_more_training_examples_than_scoring(monkeypatch):
    session = toys.toy_session(calibration=8)
    assert session.calibration.examples == 8
    data = repair_batches(session)
    assert data.examples == min(8 * repair_data.MORE, len(session.task.train))
    assert data.examples > 8
    assert repair_batches(session, "scale") is session.calibration  # it has few numbers to fit
    monkeypatch.setattr(repair_data, "MOST_TOKENS", 1)  # long texts: memory is bounded
    assert repair_batches(session) is session.calibration


def test_a_language_model_is_repaired_by_more_blocks():
    session = toys.toy_session("gpt2", calibration=4)
    data = repair_batches(session)
    assert data.examples == 4 * repair_data.MORE
    tokens = torch.cat([batch["input_ids"] for batch in data])
    scored = torch.cat([batch["input_ids"] for batch in session.calibration])
    assert torch.equal(tokens[:4], scored)


def test_pairs_of_texts_are_one_example_each():
    class Pairs(list):
        predictions, examples = 8, 16  # each pair has two rows

    session = SimpleNamespace(
        calibration=Pairs([{"input_ids": torch.zeros(16, 10)}]),
        task=SimpleNamespace(kind="similarity"),
        draw=lambda count: count,
    )
    assert repair_data.repair_examples(session, "refit") == 8 * repair_data.MORE
