"""What a sweep leaves out changes nothing: unchanged blocks, tokens nobody reads, padding, a second pass."""

import itertools
import random
from dataclasses import replace

import pytest
import torch
import toys

from espalier import Batches, Mask, criteria, greedy, lowest, masked, prune, sites
from espalier.engine.cache import Replay
from espalier.engine.first_token import first_token_only
from espalier.evaluation.predictions import answer
from espalier.experiment import compare, parse, session
from espalier.io.rows import read_rows
from espalier.pruning.working_copy import WorkingCopy
from espalier.tasks.batches import batched, divided, encode
from espalier.testing.tiny import tiny

READS_FIRST = ["bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie", "esm", "roformer"]
KINDS = ["bert", "distilbert", "gpt2", "llama", "deberta-v2", "modernbert", "albert", "t5", "olmo2"]


def classifier(kind):
    return tiny(kind, "AutoModelForSequenceClassification", num_labels=3)


def batches(memory=None):
    found = toys.toy_bench().calibration
    return Batches(found, places=found.places, memory=memory)


@pytest.mark.parametrize("by", ["gnorm", "taylor"])
@pytest.mark.parametrize(
    ("kind", "budget"), [*((kind, 2**30) for kind in KINDS), ("bert", 300_000), ("bert", 0)]
)
def test_sweeps_that_begin_where_the_model_changed_are_the_plain_ones(kind, budget, by):
    """Bit for bit, down to the last head, whatever the budget."""
    model, score, memory = classifier(kind), criteria.load(by), Replay(budget, graphs=True)
    found = sites(model, "heads")
    plain, kept = batches(), batches(memory)
    steps = greedy(keep=0, units=sum(s.units for s in found))
    masks = [Mask.ones(found), *prune(model, found, score, plain, steps)]
    rest, ran = WorkingCopy(model, found), []
    for mask in masks:
        with rest.at(mask) as (small, living):
            want, got = score(small, living, plain), score(small, living, kept)
            ran.append(sum(len(one) for one in memory.kept.values()))
            again = score(small, living, kept)
        assert memory.used <= budget
        for name in want:
            assert torch.equal(want[name], got[name])
            assert torch.equal(want[name], again[name])
    # ALBERT shares its block, T5's blocks hand on more than a tensor, OLMo 2's heads can only be gated
    if budget == 0 or kind in ("albert", "t5"):
        assert max(ran) == 0
    else:
        assert max(ran) > 0


def test_only_changed_blocks_run_again(monkeypatch):
    """Or the memory would be for nothing."""
    model, memory = classifier("bert"), Replay(2**30, graphs=True)
    found, data, score = sites(model, "heads"), batches(memory), criteria.load("gnorm")
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
    criteria.load("taylor")(model, found, data)  # watches other modules, so nothing serves
    assert ran == [0, 1, 2] * len(data)


def test_what_is_watched_and_how_it_is_rounded_counts():
    """More sites, weights that are masked meanwhile, another precision: nothing of before serves."""
    model, score = classifier("bert"), criteria.load("taylor")
    few, kept, plain = sites(model, "heads"), batches(Replay(2**30, graphs=True)), batches()

    def check(found):
        want, got = score(model, found, plain), score(model, found, kept)
        assert all(torch.equal(want[name], got[name]) for name in want)
        return want

    before = check(few)
    check(sites(model, "heads", "neurons"))
    check(few)
    matrices = sites(model, "weights")
    with masked(model, lowest(criteria.load("magnitude")(model, matrices), 0.3)):
        check(few)
    assert all(torch.equal(before[name], value) for name, value in check(few).items())
    with torch.autocast("cpu", torch.bfloat16):
        check(few)
    check(few)


def test_a_forward_that_was_there_comes_back():
    """accelerate puts its own into the blocks of a model that is spread over devices."""
    blocks = list(classifier("bert").bert.encoder.layer)
    own = blocks[0].forward = lambda *args, **kwargs: None
    with Replay().over(blocks, [0] * len(blocks)):
        assert blocks[0].forward is not own
    assert blocks[0].forward is own
    assert "forward" not in vars(blocks[1])


def test_the_budget_counts_what_autograd_keeps():
    """Not the outputs alone, of which there is one a block and a dozen on the way."""
    model, memory = classifier("bert"), Replay(2**30, graphs=True)
    data = batches(memory)
    criteria.load("gnorm")(model, sites(model, "heads"), data)
    kept = [one for each in memory.kept.values() for one in each]
    assert memory.used == sum(one.size for one in kept)
    for one in kept[:2]:  # the last block of a batch goes on with one token
        assert one.size > 4 * one.out.numel() * 4
    held = {}  # what the criterion watched is held too, whether autograd needs it or not
    for x, y in (pair for calls in kept[0].note.values() for pair in calls):
        held |= {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (x, y)}
    out = kept[0].out
    held[out.untyped_storage().data_ptr()] = out.untyped_storage().nbytes()
    assert kept[0].size > sum(held.values())
    memory.forget()
    assert memory.used == 0


@pytest.mark.parametrize("kind", READS_FIRST)
def test_classifiers_read_the_first_token(kind):
    """The logits are the same with every head and with none, and the rest of the last block is not run."""
    model, data = classifier(kind), batches()
    found = sites(model, "heads")
    seen = []
    model.base_model.encoder.layer[-1].intermediate.register_forward_hook(
        lambda _, args, out: seen.append(tuple(out.shape[:2]))
    )
    for keep in (1.0, 0.5, 0.0):
        mask = lowest(criteria.load("magnitude")(model, found), keep)
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
def test_others_read_more_and_are_left_alone(kind, top):
    model = tiny(kind, top)
    with first_token_only(model) as shortened:
        assert not shortened


def test_a_class_of_ones_own_may_read_what_it_likes():
    plain = type(classifier("bert"))
    own = type("MyForSequenceClassification", (plain,), {"__module__": "mine"})
    with first_token_only(own(classifier("bert").config)) as shortened:
        assert not shortened


class Mean(torch.nn.Module):
    """A head that reads every token."""

    def forward(self, hidden, **_):
        return hidden.mean(1)


def test_what_else_may_be_read_is_left_whole():
    """A head or pooler of one's own, hidden states, a feed-forward that takes some tokens at a time."""
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
    parts = batched(encode(some, tokenizer, length=32), tokenizer, some.labels, size=8, tokens=40)
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


def test_rows_are_divided_as_cheaply_as_can_be():
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
        got = divided(lengths, tokens, each)
        assert [i for run in got for i in run] == list(range(len(lengths)))
        assert sum(len(run) * lengths[run[-1]] + each for run in got) == min(costs)


def test_one_pass_where_two_were_made(tmp_path, monkeypatch):
    """Where the scored examples are the measured ones, the rows are those of two passes."""
    apart = toys.toy_bench(calibration=None)
    same = replace(
        apart,
        task=replace(apart.task, validation=apart.task.train),
        validation=apart.calibration,
    )
    passes = []
    monkeypatch.setattr(session, "answer", lambda *args: passes.append(1) or answer(*args))
    compare(same, parse("gnorm,taylor"), tmp_path / "one", tested=False)
    assert len(passes) == 2  # the whole model, and the one without heads, where both strategies end
    monkeypatch.setattr(session.Bench, "scored_is_measured", lambda *_: False)
    compare(same, parse("gnorm,taylor"), tmp_path / "two", tested=False)
    assert len(passes) > 30
    a, b = (read_rows(tmp_path / name / "rows.jsonl") for name in ("one", "two"))
    for mine, theirs in zip(a, b, strict=True):
        assert mine["cut"] == theirs["cut"]
        assert mine["predictions"] == theirs["predictions"]
        assert mine["metrics"]["loss"] == pytest.approx(theirs["metrics"]["loss"], rel=1e-5)


def test_only_the_same_examples_are_the_same_pass():
    bench = toys.toy_bench()
    assert not bench.scored_is_measured("gnorm")
