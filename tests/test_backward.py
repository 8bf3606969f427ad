"""What a backward pass leaves out changes nothing: unchanged blocks, tokens that are not read, padding."""

import itertools
import random
from dataclasses import replace

import pytest
import torch
import toys

from espalier import Batches, Mask, criteria, greedy, masked, prune_steps, remove_lowest, sites
from espalier.engine.cache import ActivationCache, first_token_only
from espalier.engine.gate_gradients import gate_gradients
from espalier.engine.passes import frozen_eval
from espalier.evaluation.predictions import predict
from espalier.experiment import session
from espalier.experiment.method import parse_method
from espalier.experiment.runner import run_comparison
from espalier.io.rows import read_rows
from espalier.pruning.loop import WorkingCopy
from espalier.tasks.batches import batches_of, divide_lengths, encode, make_batches
from espalier.testing.tiny import tiny

READS_FIRST = ["bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie", "esm", "roformer"]
KINDS = ["bert", "distilbert", "gpt2", "llama", "deberta-v2", "modernbert", "albert", "t5", "olmo2"]


def classifier(kind):
    return tiny(kind, "AutoModelForSequenceClassification", num_labels=3)


def batches(cache=None):
    found = batches_of(toys.examples(16, 1), toys.tokenizer(), "classification", max_length=32)
    found.cache = cache
    return found


@pytest.mark.parametrize("by", ["gnorm", "taylor", "kl"])
@pytest.mark.parametrize(
    ("kind", "budget"), [*((kind, 2**30) for kind in KINDS), ("bert", 300_000), ("bert", 0)]
)
def test_passes_that_begin_where_the_model_changed_are_the_plain_ones(kind, budget, by):
    """Bit for bit, to the last head, whatever the budget."""
    model, score, cache = classifier(kind), criteria.load(by), ActivationCache(budget, graphs=True)
    found = sites(model, "heads")
    plain, cached = batches(), batches(cache)
    # ALBERT shares its block and T5's blocks pass more than a tensor on: nothing is kept, a few steps will do
    keeps = kind not in ("albert", "t5")
    steps = greedy(remove=1, units=sum(s.units for s in found), step=1 if keeps else 6)
    masks = [Mask.ones(found), *prune_steps(model, found, score, plain, steps)]
    copy, entries = WorkingCopy(model, found), []
    for mask in masks:
        with copy.at(mask) as (small, kept):
            want, got = score(small, kept, plain), score(small, kept, cached)
            entries.append(sum(len(one) for one in cache.kept.values()))
            again = score(small, kept, cached)
        assert cache.used <= budget
        for name in want:
            assert torch.equal(want[name], got[name])
            assert torch.equal(want[name], again[name])
    assert (max(entries) > 0) == (budget > 0 and keeps)


def test_only_changed_blocks_run_again():
    model, cache = classifier("bert"), ActivationCache(2**30, graphs=True)
    found, data, score = sites(model, "heads"), batches(cache), criteria.load("gnorm")
    layers, ran = model.bert.encoder.layer, []
    for number, layer in enumerate(layers):
        layer.intermediate.register_forward_hook(lambda *_, number=number: ran.append(number))
    score(model, found, data)
    assert ran == [0, 1, 2] * len(data)
    ran.clear()
    score(model, found, data)
    assert ran == []
    with torch.no_grad():
        layers[1].output.dense.weight.mul_(1.01)  # in place: the same tensor, another version
    score(model, found, data)
    assert ran == [1, 2] * len(data)
    ran.clear()
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.mul_(1.01)
    score(model, found, data)
    assert ran == [0, 1, 2] * len(data)
    ran.clear()
    criteria.load("taylor")(model, found, data)  # watches other modules, so nothing can be reused
    assert ran == [0, 1, 2] * len(data)


def test_what_is_watched_and_how_it_is_rounded_counts():
    """More sites, masked weights, another precision: nothing of before is reused."""
    model, score = classifier("bert"), criteria.load("taylor")
    few, kept, plain = sites(model, "heads"), batches(ActivationCache(2**30, graphs=True)), batches()

    def check(found):
        want, got = score(model, found, plain), score(model, found, kept)
        assert all(torch.equal(want[name], got[name]) for name in want)
        return want

    before = check(few)
    check(sites(model, "heads", "neurons"))
    check(few)
    matrices = sites(model, "weights")
    with masked(model, remove_lowest(criteria.load("magnitude")(model, matrices), 0.7)):
        check(few)
    assert all(torch.equal(before[name], value) for name, value in check(few).items())
    with torch.autocast("cpu", torch.bfloat16):
        check(few)
    check(few)


def test_a_forward_that_was_set_is_restored():
    """accelerate sets its own in the blocks of a model that is spread over devices."""
    blocks = list(classifier("bert").bert.encoder.layer)
    own = blocks[0].forward = lambda *args, **kwargs: None
    with ActivationCache().over(blocks, [0] * len(blocks)):
        assert blocks[0].forward is not own
    assert blocks[0].forward is own
    assert "forward" not in vars(blocks[1])


def test_the_budget_counts_what_autograd_keeps():
    """Not the outputs alone, of which there is one a block and a dozen on the way."""
    model, cache = classifier("bert"), ActivationCache(2**30, graphs=True)
    data = batches(cache)
    criteria.load("gnorm")(model, sites(model, "heads"), data)
    kept = [one for each in cache.kept.values() for one in each]
    assert cache.used == sum(one.size for one in kept)
    for one in kept[:2]:  # the last block of a batch computes one token
        assert one.size > 4 * one.out.numel() * 4
    held = {}  # what the criterion watched is held too, whether autograd needs it or not
    for x, y in (pair for calls in kept[0].note.values() for pair in calls):
        held |= {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (x, y)}
    out = kept[0].out
    held[out.untyped_storage().data_ptr()] = out.untyped_storage().nbytes()
    assert kept[0].size > sum(held.values())
    cache.clear()
    assert cache.used == 0


@pytest.mark.parametrize("kind", READS_FIRST)
def test_classifiers_read_the_first_token(kind):
    """The logits are the same with every head and with none, and the rest of the last block is not run."""
    model, data = classifier(kind), batches()
    found = sites(model, "heads")
    seen = []
    model.base_model.encoder.layer[-1].intermediate.register_forward_hook(
        lambda _, args, out: seen.append(tuple(out.shape[:2]))
    )
    for remove in (0.0, 0.5, 1.0):
        mask = remove_lowest(criteria.load("magnitude")(model, found), remove)
        with WorkingCopy(model, found).at(mask) as (small, _), torch.no_grad():
            for batch in data:
                given = {n: v for n, v in batch.items() if n in ("input_ids", "attention_mask")}
                want = small(**given).logits
                seen.clear()
                with first_token_only(small) as shortened:
                    got = small(**given).logits
                assert shortened
                assert seen in ([(len(want), 1)], [])  # the copy may have lost the hook
                torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
                assert torch.equal(small(**given).logits, want)


@pytest.mark.parametrize(
    ("kind", "top"),
    [
        ("bert", "AutoModelForMaskedLM"),
        ("bert", "AutoModelForTokenClassification"),
        ("distilbert", "AutoModelForSequenceClassification"),
        ("gpt2", "AutoModelForSequenceClassification"),
    ],
)
def test_models_that_read_more_tokens_are_not_shortened(kind, top):
    model = tiny(kind, top)
    with first_token_only(model) as shortened:
        assert not shortened


def test_a_class_of_the_user_is_not_shortened():
    plain = type(classifier("bert"))
    own = type("MyForSequenceClassification", (plain,), {"__module__": "mine"})
    with first_token_only(own(classifier("bert").config)) as shortened:
        assert not shortened


class Mean(torch.nn.Module):
    """A head that reads every token."""

    def forward(self, hidden, **_):
        return hidden.mean(1)


def test_modules_that_may_read_more_are_not_shortened():
    """A head or pooler of the user, hidden states, a feed-forward network in chunks."""
    headed, pooled, open_, parts = classifier("roberta"), *(classifier("bert") for _ in range(3))
    headed.classifier, pooled.bert.pooler = Mean(), Mean()
    open_.config.output_hidden_states = True
    parts.config.chunk_size_feed_forward = 2
    for model in (headed, pooled, open_, parts):
        with first_token_only(model) as shortened:
            assert not shortened


@pytest.mark.parametrize("objective", ["logits", "loss"])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "albert"])
def test_a_batch_in_parts_is_the_batch(kind, objective):
    """pooling=batch: the gradient of a batch adds up over parts of like length."""
    model = classifier(kind)
    found, score = sites(model, "heads"), criteria.load("gnorm")
    tokenizer, some = toys.tokenizer(), toys.examples(21, 1, classes=3)
    parts = make_batches(encode(some, tokenizer, max_length=32), tokenizer, some.labels, size=8, tokens=40)
    assert len(parts) > len(parts.groups) == 3
    whole = Batches()
    for group in parts.groups:
        rows = [
            {"input_ids": ids[mask.bool()].tolist(), "labels": int(label)}
            for n in group
            for ids, mask, label in zip(parts[n]["input_ids"], parts[n]["attention_mask"], parts[n]["labels"])
        ]
        batch = dict(tokenizer.pad([{"input_ids": r["input_ids"]} for r in rows], return_tensors="pt"))
        whole.append({**batch, "labels": torch.tensor([r["labels"] for r in rows])})
    options = {"pooling": "batch", "objective": objective}
    want, got = score(model, found, whole, **options), score(model, found, parts, **options)
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-5, atol=1e-5)


def test_rows_are_divided_at_the_least_cost():
    draw = random.Random(3)
    for _ in range(20):
        lengths = sorted(draw.randint(1, 30) for _ in range(draw.randint(1, 9)))
        tokens, each = draw.choice([30, 60, 1000]), draw.choice([0, 5, 40])
        costs = []
        for cuts in itertools.product([False, True], repeat=len(lengths) - 1):
            ends = [i + 1 for i, cut in enumerate(cuts) if cut] + [len(lengths)]
            runs = list(zip([0, *ends], ends))
            if all((b - a) * lengths[b - 1] <= tokens or b - a == 1 for a, b in runs):
                costs.append(sum((b - a) * lengths[b - 1] + each for a, b in runs))
        got = divide_lengths(lengths, tokens, each)
        assert [i for run in got for i in run] == list(range(len(lengths)))
        assert sum(len(run) * lengths[run[-1]] + each for run in got) == min(costs)


def compare(session, folder):
    methods = [parse_method(label, "heads") for label in ("gnorm", "taylor")]
    run_comparison(session, methods, folder, remove=[1.0], test=False)
    return read_rows(folder / "rows.jsonl")


def test_one_pass_instead_of_two(tmp_path, monkeypatch):
    """Where the scored examples are the measured ones, the rows are those of two passes."""
    apart = toys.toy_session(calibration=None)
    task = replace(apart.task, validation=apart.task.train)
    same = replace(apart, task=task, validation=apart.calibration)
    passes = []
    monkeypatch.setattr(session, "predict", lambda *args: passes.append(1) or predict(*args))
    one = compare(same, tmp_path / "one")
    assert len(passes) == 2  # the whole model, and the one without heads, where both methods end
    monkeypatch.setattr(session.Session, "scores_validation", lambda *_: False)
    two = compare(same, tmp_path / "two")
    assert len(passes) > 30
    for mine, theirs in zip(one, two, strict=True):
        assert mine["order"] == theirs["order"]
        assert mine["predictions"] == theirs["predictions"]
        assert mine["metrics"]["loss"] == pytest.approx(theirs["metrics"]["loss"], rel=1e-5)


def test_only_the_same_examples_are_the_same_pass():
    assert not toys.toy_session().scores_validation("gnorm")


@pytest.mark.parametrize("target", ["heads", "neurons", "layers"])
def test_several_losses_take_one_pass_forward(target):
    model, data = classifier("bert"), batches()
    ran: list[int] = []
    model.register_forward_hook(lambda *_: ran.append(1))
    losses = [lambda out, _, c=c: -out.logits.log_softmax(-1)[:, c].mean() for c in range(3)]
    found = sites(model, target)
    with frozen_eval(model):
        apart = [gate_gradients(model, found, data, torch.square, losses=[loss]) for loss in losses]
        ran.clear()
        together = gate_gradients(model, found, data, torch.square, losses=losses)
    assert len(ran) == len(data)
    for name, value in together.items():
        torch.testing.assert_close(value, sum(one[name] for one in apart), rtol=1e-12, atol=0)


@pytest.mark.parametrize(("by", "target"), [("taylor", "heads"), ("gnorm", "heads"), ("kl", "layers")])
def test_scores_do_not_need_gradients_to_be_on(by, target):
    model, data, score = classifier("bert"), batches(), criteria.load(by)
    plain = score(model, sites(model, target), data)
    with torch.no_grad():
        found = score(model, sites(model, target), data)
    assert all(plain[name].equal(found[name]) for name in plain)


@pytest.mark.parametrize(("by", "target"), [("taylor", "heads"), ("fisher", "layers")])
def test_a_loss_is_one_number(by, target):
    model, data = classifier("bert"), batches()
    data.loss = lambda out, batch: -out.logits.log_softmax(-1)[:, 0]
    with pytest.raises(RuntimeError, match="scalar"):
        criteria.load(by)(model, sites(model, target), data)
