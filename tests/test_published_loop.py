"""The faithful mode against the published loop, acted out again the slow way and with surgery of its own.

`pooling="batch", objective="logits"` promises the order of the published Greedy-Gnorm code. So that code is
acted out here from an account of what it does, quirks included, with nothing of espalier's in it; only its
last step is done in float64, for in float32 it picks wrong heads, as one test shows.
"""

import pytest
import torch
from benchmarks.published_loop import (
    SlicedModel,
    high_first,
    low_first,
    products,
    standard,
)
from torch import nn

from espalier import Batches, Mask, Scores, criteria, greedy, masked, prune_steps, remove_lowest, sites
from espalier.testing.tiny import tiny

KINDS = ["bert", "albert", "roberta"]


def classifier(kind, attention="sdpa"):
    shape = {"num_hidden_layers": 4, "num_hidden_groups": 1} if kind == "albert" else {}
    return tiny(kind, "AutoModelForSequenceClassification", attention, num_labels=3, **shape)


def texts(n=11, seed=5):
    """Sentences of uneven length: rows of token numbers, the padding token not among them."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 14, (n,), generator=generator).tolist()
    return [torch.randint(4, 64, (length,), generator=generator) for length in lengths]


def padded(rows):
    """A batch as a tokenizer makes it: padded on the right to its longest row."""
    pad = nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(rows, batch_first=True, padding_value=0),
        "attention_mask": pad([torch.ones_like(r) for r in rows], batch_first=True),
    }


def in_batches(rows, size):
    return [padded(rows[i : i + size]) for i in range(0, len(rows), size)]


# The published code, acted out -----------------------------------------------------------------------------


def published_order(model, batches, texts_in_split, rule):
    """(layer, head) by step, to the last head, and the logits of the sliced model after each step."""
    sliced, order, logits = SlicedModel(model), [], []
    for _ in range(sliced.mask.numel()):
        z = standard(products(sliced, batches, texts_in_split))
        place = rule(z, sliced.mask)
        sliced.remove(*place)
        order.append(place)
        with torch.no_grad():
            logits.append(sliced.model(**batches[0]).logits)
    assert len(set(order)) == len(order)  # no head is "removed" twice
    return order, logits


def static_order(matrix, rule):
    """The order by scores that are never computed again."""
    mask, order = torch.ones(matrix.shape, dtype=torch.int64), []
    for _ in range(mask.numel()):
        place = rule(matrix, mask)
        mask[place] = 0
        order.append(place)
    return order


# Ours ------------------------------------------------------------------------------------------------------


def left(before, after, found):
    """The one (layer, head) that a step removed."""
    names = [site.name for site in found]
    removed = [(names.index(n), i) for n in names for i in (before[n] & ~after[n]).nonzero().flatten()]
    assert len(removed) == 1
    return removed[0][0], int(removed[0][1])


def our_order(masks, found):
    before, order = Mask.ones(found), []
    for mask in masks:
        order.append(left(before, mask, found))
        before = mask
    return order


@pytest.mark.parametrize("inverse", [False, True], ids=["greedy", "inverse"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_faithful_mode_is_the_published_loop(kind, inverse):
    """The same head at every step down to none, and after every step the same logits."""
    model, rows = classifier(kind), texts()
    batches, found = in_batches(rows, 4), sites(model, "heads")
    assert len({b["input_ids"].shape[1] for b in batches}) > 1
    assert any((b["attention_mask"] == 0).any() for b in batches)
    # The number they divide by is of the whole split, not of what was scored: it must not matter.
    rule = high_first if inverse else low_first
    want, logits = published_order(model, batches, 3 * len(rows), rule)
    masks = list(
        prune_steps(
            model,
            found,
            criteria.load("gnorm"),
            Batches(batches),
            greedy(remove=1, units=sum(s.units for s in found)),
            reverse=inverse,
            pooling="batch",
            objective="logits",
        )
    )
    assert our_order(masks, found) == want
    assert len(want) == (6 if kind == "albert" else 18)
    assert masks[-1].kept == 0
    for mask, theirs in zip(masks, logits):
        with torch.no_grad(), masked(model, mask):
            torch.testing.assert_close(model(**batches[0]).logits, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_faithful_scores_are_the_published_products(kind):
    """Not only their order: up to the number they divide by, the same numbers."""
    model, rows = classifier(kind), texts()
    batches, found = in_batches(rows, 4), sites(model, "heads")
    theirs = products(SlicedModel(model), batches, len(batches)).log()
    ours = criteria.load("gnorm")(model, found, Batches(batches), pooling="batch")
    for row, site in zip(theirs, found):
        torch.testing.assert_close(ours[site.name], row, rtol=1e-4, atol=1e-4)


def test_the_order_hangs_on_every_part_of_the_recipe():
    """Or the proof would prove nothing: another pooling, objective, batch size or rule, another order."""
    model, rows = classifier("bert"), texts()
    found, score = sites(model, "heads"), criteria.load("gnorm")
    faithful = {"pooling": "batch", "objective": "logits"}

    def order(size=4, **options):
        batches = in_batches(rows, size)
        for i, batch in enumerate(batches):
            batch["labels"] = torch.arange(i, i + len(batch["input_ids"])) % 3
        steps = greedy(remove=1, units=18)
        return our_order(prune_steps(model, found, score, Batches(batches), steps, **options), found)

    want = order(**faithful)
    assert order(pooling="example", objective="logits") != want
    assert order(pooling="batch", objective="loss") != want
    assert order(size=11, **faithful) != want
    assert order(reverse=True, **faithful) not in (want, want[::-1])
    static = score(model, found, Batches(in_batches(rows, 4)), **faithful)
    assert static_by(static, found) != want


def test_float32_picks_the_wrong_head_and_we_do_not():
    """max − z keeps seven digits, so three products that differ by five orders of magnitude are one to it."""
    generator = torch.Generator().manual_seed(0)
    s = 1e-5 * (0.5 + torch.rand(12, 12, generator=generator, dtype=torch.float64))
    s[2, 5], s[3, 3], s[7, 1] = 3e-13, 1e-15, 2e-18
    kept = torch.ones(12, 12, dtype=torch.int64)
    assert low_first(standard(s.float()), kept) == (2, 5)  # the first of the three, not the lowest
    z = standard(s.float())
    assert z[2, 5] == z[3, 3] == z[7, 1]
    scores = Scores({f"encoder.layer.{i}/heads": row.log() for i, row in enumerate(s)})
    mask, order = None, []
    for removed in (1, 2, 3):
        mask = remove_lowest(scores, removed / 144, mask=mask)
        order.append({(i, int(h)) for i, m in enumerate(mask.values()) for h in (~m).nonzero()})
    assert order == [{(7, 1)}, {(7, 1), (3, 3)}, {(7, 1), (3, 3), (2, 5)}]


def test_the_published_fallback_and_its_want_of_one():
    """The last head is the highest, so max − z is zero everywhere: without the fallback none would go."""
    s = torch.zeros(2, 3, dtype=torch.float64)
    s[1, 2] = 1e-6
    mask = (s > 0).long()
    assert low_first(standard(s), mask) == (1, 2)
    assert high_first(standard(s), mask) == (1, 2)
    # All products zero: z is not a number, and a head that is gone already is "removed" once more.
    assert low_first(standard(torch.zeros(2, 3)), mask) == (0, 0)
    zero = Scores({f"{i}/heads": torch.full((3,), -torch.inf) for i in range(2)})
    last = Mask({f"{i}/heads": row.bool() for i, row in enumerate(mask)})
    assert remove_lowest(zero, 1, mask=last).kept == 0


# Entropy, which is scored once -----------------------------------------------------------------------------


def published_entropy(model, rows, form):
    """[layers, heads]: one sentence at a time, no padding; a block used several times is summed over uses."""
    eps, total = 1e-7, 0
    for row in rows:
        with torch.no_grad():
            maps = model(input_ids=row[None], output_attentions=True).attentions
        a = torch.stack(maps)[:, 0]  # [uses, heads, to, from]
        each = -a * a.log() if form == "A" else -(a + eps) * (a + eps).log()
        total = total + each.sum(-1).mean(-1).double()
    entropy = total / len(rows)
    return entropy.sum(0, keepdim=True) if model.config.model_type == "albert" else entropy


def static_by(scores, found, reverse=False):
    """Our order by scores that are computed once."""
    units = sum(s.units for s in found)
    scores = Scores({n: -s if reverse else s for n, s in scores.items()})
    masks = [Mask.ones(found)]
    for remove in greedy(remove=1, units=units):
        masks.append(remove_lowest(scores, remove, mask=masks[-1]))
    return our_order(masks[1:], found)


@pytest.mark.parametrize("form", ["A", "C"])
@pytest.mark.parametrize("kind", KINDS)
def test_entropy_and_its_inverse_are_the_published_orders(kind, form):
    """AE removes the highest entropy first, inverse AE the lowest."""
    model, rows = classifier(kind, "eager"), texts()
    found = sites(model, "heads")
    matrix = published_entropy(model, rows, form)
    one_by_one = Batches({"input_ids": row[None]} for row in rows)
    scores = criteria.load("entropy")(model, found, one_by_one, form=form)
    for row, site in zip(matrix, found):
        torch.testing.assert_close(-scores[site.name] * site.uses, row, rtol=1e-5, atol=1e-6)
    assert static_by(scores, found) == static_order(matrix, high_first)
    assert static_by(scores, found, reverse=True) == static_order(matrix, low_first)


@pytest.mark.parametrize("kind", KINDS)
def test_entropy_of_padded_batches_is_that_of_sentences(kind):
    """Form C can be reproduced with padded batches."""
    model, rows = classifier(kind, "eager"), texts()
    batches, found = in_batches(rows, 4), sites(model, "heads")
    matrix = published_entropy(model, rows, "C")
    together = criteria.load("entropy")(model, found, Batches(batches), form="C")
    for row, site in zip(matrix, found):
        torch.testing.assert_close(-together[site.name] * site.uses, row, rtol=1e-4, atol=1e-5)
