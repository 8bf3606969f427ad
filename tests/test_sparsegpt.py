"""What matrices read, Wanda and SparseGPT: by hand, by least squares, layer by layer."""

import pytest
import torch
from calibration import (
    CLASSIFIER,
    WITH_INPUTS,
    classifier,
    close,
    given_to,
    one_by_one,
    padded,
    split,
    toy,
)

from espalier import Batches, compensate, criteria, prune_steps, remove_lowest, sites, zero
from espalier.core.errors import DataError, InvalidValueError, UnsupportedError
from espalier.engine.hessians import factor, hessians
from espalier.pruning.compensation import repair
from espalier.testing.tiny import inputs, tiny

QUESTIONS = "AutoModelForQuestionAnswering"


@pytest.mark.parametrize("kind", ["bert", "gpt2", "albert"])
def test_wanda_is_magnitude_times_the_norm_of_real_inputs(kind):
    model = classifier(kind)
    found, given = sites(model, "weights"), given_to(classifier(kind))
    seen = {s.name: [] for s in found}
    handles = [
        s.linear.register_forward_pre_hook(lambda _, a, name=s.name: seen[name].append(a[0])) for s in found
    ]
    for alone in one_by_one(given):  # without its padding a row is alone with its tokens
        real = int(alone["attention_mask"].sum())
        short = {k: v[:, :real] for k, v in alone.items() if k != "labels"}
        with torch.no_grad():
            model(**short)
    for handle in handles:
        handle.remove()
    got = criteria.load("wanda")(model, found, split(given, (4, 2)))
    for site in found:
        x = torch.cat([part.flatten(0, 1) for part in seen[site.name]]).norm(dim=0)
        want = site.linear.weight.detach().abs() * (x[:, None] if kind == "gpt2" else x)
        close(got[site.name], want, rtol=1e-5)


@pytest.mark.parametrize("amount", [0.5, 0.3, "2:4"])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_wanda_layer_after_layer(kind, amount):
    """By hand: score a block with the blocks before it pruned, prune it, go on."""
    model, given = classifier(kind), given_to(classifier(kind))
    scope = {"scope": amount} if isinstance(amount, str) else {"scope": "row", "remove": amount}
    found, by_hand, want = sites(model, "weights"), classifier(kind), {}
    data, before = split(given, (4, 2)), [p.detach().clone() for p in model.parameters()]
    got = criteria.load("wanda")(model, found, data, sequential=amount)
    for block in dict.fromkeys(s.name.partition("/")[0] for s in found):
        own = [s for s in sites(by_hand, "weights") if s.name.startswith(f"{block}/")]
        score = criteria.load("wanda")(by_hand, own, data)
        want.update(score)
        zero(by_hand, remove_lowest(score, **scope))
    at_once = criteria.load("wanda")(model, found, data)
    for site in found:
        close(got[site.name], want[site.name], rtol=1e-12)
        first = site.name.startswith(found[0].name.partition("/")[0])
        assert torch.equal(got[site.name], at_once[site.name]) == first
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("amount", [True, 1.0, -0.5, 7])
def test_wanda_needs_the_fraction_to_go_on_with(amount):
    model = classifier("bert")
    with pytest.raises(InvalidValueError) as error:
        criteria.load("wanda")(model, sites(model, "weights"), [given_to(model)], sequential=amount)
    assert error.value.parameter == "sequential"


def test_wanda_of_even_inputs_is_magnitude_row_by_row():
    model, site, _ = toy()
    even = Batches([{"x": 3 * torch.eye(40, dtype=torch.float64)[None]}])
    scores = criteria.load("wanda")(model, [site], even)
    close(scores[site.name], 3 * model.linear.weight.detach().abs())
    size = criteria.load("magnitude")(model, [site])
    by_row = [remove_lowest(each, 0.6, scope="row")[site.name] for each in (scores, size)]
    assert torch.equal(*by_row)


def test_wanda_does_not_mind_a_scale_moved_from_weights_to_inputs():
    model, site, data = toy()
    scale = torch.linspace(0.1, 9, 40).double()
    before = criteria.load("wanda")(model, [site], data)[site.name]
    model.linear.weight.data /= scale
    after = criteria.load("wanda")(model, [site], Batches([{"x": data[0]["x"] * scale}]))[site.name]
    close(before, after)


def test_wanda_compares_within_rows_by_itself():
    model = classifier("gpt2")
    found, data = sites(model, "weights"), Batches([given_to(classifier("gpt2"))])
    (mask,) = prune_steps(model, found, criteria.load("wanda"), data, [0.5])
    want = remove_lowest(criteria.load("wanda")(model, found, data), 0.5, scope="row")
    assert all(torch.equal(m, want[n]) for n, m in mask.items())
    assert all((m.sum(0) == m.shape[0] // 2).all() for m in mask.values())  # inputs lie along axis 0
    (flat,) = prune_steps(model, found, criteria.load("magnitude"), None, [0.5])
    want = remove_lowest(criteria.load("magnitude")(model, found), 0.5)
    assert all(torch.equal(m, want[n]) for n, m in flat.items())


def test_cross_attention_reads_the_tokens_of_the_encoder():
    model = tiny("bart").double()
    given = {k: v for k, v in inputs(model, tokens=7).items() if torch.is_tensor(v)}
    given["decoder_attention_mask"] = torch.ones_like(given["decoder_input_ids"])
    given["decoder_attention_mask"][1, 5:] = 0
    found = [s for s in sites(model, "weights") if s.name.startswith("decoder.layers.1/")]
    tokens = {}
    measured = hessians(model, found, Batches([given]), "test")
    for site in found:
        rows = []
        handle = site.linear.register_forward_pre_hook(lambda _, a, rows=rows: rows.append(a[0]))
        with torch.no_grad():
            model(**given)
        handle.remove()
        crossing = "encoder_attn.k" in site.name or "encoder_attn.v" in site.name
        mask = given["attention_mask" if crossing else "decoder_attention_mask"].bool()
        x = rows[0][mask]
        tokens[site.name] = len(x)
        close(measured[site.name], 2 * x.T @ x / len(x))
    assert set(tokens.values()) == {14 - 3, 14 - 2}
    assert {s.reads for s in found} == {"hidden", "encoder"}


def test_a_decoder_that_is_fed_its_labels():
    """Given as labels alone, or as the tokens and the mask that the model makes of them."""
    model = tiny("t5", "AutoModelForSeq2SeqLM").double()
    given = {k: inputs(model, tokens=6)[k] for k in ("input_ids", "attention_mask")}
    labels = torch.tensor([[5, 9, 11, 2, -100], [7, 2, -100, -100, -100]])
    late = torch.tensor([[0, 5, 9, 11, 2], [0, 7, 2, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])  # what has a label to predict
    found = sites(model, "weights")
    short = criteria.load("wanda")(model, found, [{**given, "labels": labels}])
    spelled = {**given, "decoder_input_ids": late, "decoder_attention_mask": mask}
    long = criteria.load("wanda")(model, found, [spelled])
    for name in short:
        close(short[name], long[name])


ENDED = (("bart", CLASSIFIER), ("t5", CLASSIFIER), ("bart", QUESTIONS), ("t5", QUESTIONS))


def ended(model, side):
    """Rows of several lengths, each with its end token; labels as the model's task has them."""
    given = {k: v for k, v in given_to(model).items() if k in ("input_ids", "attention_mask")}
    rows, ids, mask = len(given["input_ids"]), given["input_ids"], given["attention_mask"]
    ids[ids == 2] = 3
    ids[torch.arange(rows), mask.sum(1) - 1] = 2
    if side == "left":
        back = [int(m.sum()) - len(m) for m in mask]
        given = {k: torch.stack([r.roll(-n) for r, n in zip(v, back)]) for k, v in given.items()}
    if model.__class__.__name__.endswith("QuestionAnswering"):
        return given | {f"{end}_positions": torch.zeros(rows).long() for end in ("start", "end")}
    return given | {"labels": torch.arange(rows) % 2}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(("kind", "top"), ENDED)
def test_a_decoder_that_is_fed_what_the_encoder_reads(kind, top, side):
    """By the tokens themselves: a decoder's embedding sees them, and padding is no token."""
    model = tiny(kind, top).double()
    given = ended(model, side)
    decoder = model.base_model.decoder
    found = sites(model, "weights")
    ids, read = [], {s.name: [] for s in found}
    handles = [decoder.embed_tokens.register_forward_pre_hook(lambda _, a: ids.append(a[0]))]
    handles += [
        s.linear.register_forward_pre_hook(lambda _, a, name=s.name: read[name].append(a[0])) for s in found
    ]
    with torch.no_grad():
        model(**given)
    for handle in handles:
        handle.remove()
    fed, mask = ids[-1], given["attention_mask"]
    assert torch.equal(fed[:, 1:], given["input_ids"][:, :-1])
    real = fed != 0
    real[:, 0] = True  # T5 starts with the padding's token
    real &= real.cumsum(1) <= mask.sum(1, keepdim=True)  # the label is predicted before the last one is read
    assert real.sum() == mask.sum()
    measured = hessians(model, found, Batches([given]), "test")
    for site in found:
        late = site.name.startswith("decoder") and site.reads != "encoder"
        x = read[site.name][0][real if late else mask.bool()]
        close(measured[site.name], 2 * x.T @ x / len(x), atol=1e-12)


@pytest.mark.parametrize(("kind", "top"), ENDED)
def test_encoder_decoders_are_scored_and_repaired_whatever_the_padding(kind, top):
    model = tiny(kind, top).double()
    given, found = ended(model, "right"), sites(model, "weights")
    alone = []
    for i, size in enumerate(given["attention_mask"].sum(1)):
        alone.append({k: v[i : i + 1, :size] if v.dim() == 2 else v[i : i + 1] for k, v in given.items()})
    for name in WITH_INPUTS:
        short = criteria.load(name)(model, found, Batches(alone))
        for batches in ([given], [padded(given)]):
            long = criteria.load(name)(model, found, Batches(batches))
            for site in found:
                close(long[site.name], short[site.name], rtol=1e-7)
    mask = compensate(model, found, Batches([given]), 0.5)
    assert all(torch.equal(s.linear.weight != 0, mask[s.name]) for s in found)


def test_many_labels_of_an_example_are_no_tokens():
    model = tiny("bart", CLASSIFIER, num_labels=3).double()
    given, found = ended(model, "right"), sites(model, "weights")
    want = criteria.load("wanda")(model, found, [given])
    model.config.problem_type = None  # the model settles it by the first labels it sees
    got = criteria.load("wanda")(model, found, [{**given, "labels": torch.ones(6, 3).double()}])
    for name in want:
        close(got[name], want[name])


def test_labels_padded_more_change_nothing():
    model = tiny("bart", "AutoModelForSeq2SeqLM").double()
    found = sites(model, "weights")
    given = {k: inputs(model, tokens=6)[k] for k in ("input_ids", "attention_mask")}
    labels = torch.tensor([[5, 9, 11, 2], [7, 2, -100, -100]])
    want = criteria.load("wanda")(model, found, [{**given, "labels": labels}])
    wide = torch.nn.functional.pad(labels, (0, 3), value=-100)
    got = criteria.load("wanda")(model, found, [{**given, "labels": wide}])
    for name in want:
        close(got[name], want[name])


@pytest.mark.parametrize("also", ["embeddings", "norms"])
def test_matrices_without_inputs_are_refused(also):
    model = tiny("bert", CLASSIFIER)
    data, found = Batches([given_to(model)]), sites(model, "weights", also=[also])
    for name in criteria.names("weights"):
        if criteria.load(name).reads_inputs:
            with pytest.raises(UnsupportedError):
                criteria.load(name)(model, found, data)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(UnsupportedError):
        compensate(model, found, data)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_calibration_data_are_required():
    model = tiny("bert", CLASSIFIER)
    for name in criteria.names("weights"):
        if criteria.load(name).needs_data:
            with pytest.raises(DataError):
                criteria.load(name)(model, sites(model, "weights"))
    with pytest.raises(DataError):
        compensate(model, sites(model, "weights"), Batches())


def test_repair_leaves_less_error_than_magnitude_at_the_same_budget():
    model, site, data = toy()
    weight, x = model.linear.weight.detach().clone(), data[0]["x"][0]
    hessian = hessians(model, [site], data, "test")[site.name]
    close(hessian, 2 * x.T @ x / len(x))

    def error(other):
        return (x @ (weight - other).T).square().sum().item()

    size = criteria.load("magnitude")(model, [site])
    for remove in (0.7, 0.5, 0.2):
        updated, kept = repair(weight, hessian, remove, block=16)
        assert int(kept.sum()) == round((1 - remove) * weight.numel())
        assert torch.equal(updated != 0, kept)
        by_size = error(weight * remove_lowest(size, remove)[site.name])
        assert error(updated) < 0.8 * by_size
        assert error(updated) < error(weight * kept)  # the same mask without repair
    for n, m in ((2, 4), (1, 4), (4, 8), (2, 3)):
        updated, kept = repair(weight, hessian, 0.5, groups=(n, m), block=16)
        count = kept[:, : 40 // m * m].unflatten(1, (-1, m)).sum(-1)
        assert (count == n).all()
        assert error(updated) < error(weight * remove_lowest(size, scope=f"{n}:{m}")[site.name])
    assert (repair(weight, hessian, 0.5, groups=(2, 3))[1][:, 39:].sum(1) == 1).all()


def test_repair_of_one_weight_is_the_best_there_is():
    """With one weight of the first column removed, least squares over the others gives the same row."""
    model, site, data = toy(rows=1, width=6)
    weight = model.linear.weight.detach().clone()
    weight[0, 0] = 1e-3  # the one to be removed
    hessian = hessians(model, [site], data, "test")[site.name]
    updated, kept = repair(weight, hessian, 1 / 6, damping=0)
    assert kept.tolist() == [[False, True, True, True, True, True]]
    x = data[0]["x"][0]
    best = torch.linalg.lstsq(x[:, 1:], (x @ weight.T)).solution.T
    close(updated[:, 1:], best, rtol=1e-8)


def test_without_correlation_nothing_is_updated_and_the_score_is_wandas_square():
    model, site, _ = toy()
    scale = torch.linspace(1, 5, 40).double()
    data = Batches([{"x": torch.diag(scale)[None]}])
    weight = model.linear.weight.detach().clone()
    kept = compensate(model, [site], data, 0.5, damping=0)[site.name]
    close(model.linear.weight.detach(), weight * kept, rtol=1e-12)
    model.linear.weight.data = weight
    scores = criteria.load("sparsegpt")(model, [site], data, damping=0)
    wanda = criteria.load("wanda")(model, [site], data)[site.name]
    close(scores[site.name], 2 / 40 * wanda.square())
    assert torch.equal(remove_lowest(scores, 0.5, scope="layer")[site.name], kept)


def test_weights_of_an_input_that_is_always_zero_are_removed_first():
    model, site, data = toy()
    data[0]["x"][..., [3, 17]] = 0
    model.linear.weight.data[:, 3] = 50.0
    assert (criteria.load("sparsegpt")(model, [site], data)[site.name][:, [3, 17]] == 0).all()
    kept = compensate(model, [site], data, 0.1)[site.name]
    assert not kept[:, [3, 17]].any()
    assert torch.isfinite(model.linear.weight).all()
    assert int(kept.sum()) == round(0.9 * kept.numel())


@pytest.mark.parametrize("kind", ["bert", "gpt2", "albert", "phi3"])
def test_compensation_goes_layer_by_layer_with_the_inputs_of_the_pruned_model(kind):
    model = classifier(kind)
    data = split(given_to(model), (4, 2))
    before = [w.linear.weight.detach().clone() for w in sites(model, "weights")]
    found = sites(model, "weights")
    mask = compensate(model, found, data, 0.4, block=16)
    assert all(p.requires_grad for p in model.parameters())
    # By hand: the last block again, on a model whose earlier blocks are as they are now.
    last = [(s, w) for s, w in zip(found, before) if s.name.split("/")[0] == found[-1].name.split("/")[0]]
    now = {s.name: s.linear.weight.detach().clone() for s, _ in last}
    for site, weight in last:
        site.linear.weight.data.copy_(weight)
    measured = hessians(model.eval(), [s for s, _ in last], data, "test")
    for site, weight in last:
        turned = (lambda w: w.T) if site.input_axis == 0 else (lambda w: w)
        want, kept = repair(turned(weight), measured[site.name], 0.4, block=16)
        close(now[site.name], turned(want), rtol=1e-9)
        assert torch.equal(mask[site.name], turned(kept))
        assert torch.equal(now[site.name] != 0, mask[site.name])
    for m in mask.values():
        assert int(m.sum()) == round(0.6 * m.numel())


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
@pytest.mark.parametrize("scope", ["layer", "2:4"])
def test_removed_weights_stay_removed(kind, scope):
    model = classifier(kind)
    found, data = sites(model, "weights"), Batches([given_to(model)])
    start = remove_lowest(criteria.load("magnitude")(model, found), scope="3:4")
    zero(model, start)
    mask = compensate(model, found, data, 0.5, scope=scope, block=16, mask=start)
    for site in found:
        assert not (mask[site.name] & ~start[site.name]).any()
        assert torch.equal(site.linear.weight != 0, mask[site.name])
        assert int(mask[site.name].sum()) == site.units // 2
    # Where fewer are left than asked for, all of them are kept.
    left = compensate(model, found, data, 0.1, block=16, mask=mask)
    assert all(torch.equal(left[name], mask[name]) for name in mask)


def test_compensation_to_n_of_m():
    model = tiny("gpt2", CLASSIFIER)
    found, data = sites(model, "weights"), Batches([given_to(model)])
    mask = compensate(model, found, data, scope="2:4")
    for site in found:
        assert (mask[site.name].T.unflatten(-1, (-1, 4)).sum(-1) == 2).all()
        assert torch.equal(site.linear.weight != 0, mask[site.name])


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"scope": "2:"}, "scope"),
        ({"scope": "5:4"}, "scope"),
        ({"scope": "row"}, "scope"),
        ({"remove": 2}, "remove"),
        ({"block": 0}, "block"),
    ],
)
def test_impossible_compensations_are_refused(options, parameter):
    model = tiny("gpt2", CLASSIFIER)
    with pytest.raises(InvalidValueError) as error:
        compensate(model, sites(model, "weights"), Batches([given_to(model)]), **options)
    assert error.value.parameter == parameter


def test_compensation_is_of_single_weights():
    model = tiny("gpt2", CLASSIFIER)
    with pytest.raises(InvalidValueError) as error:
        compensate(model, sites(model, "heads"), Batches([given_to(model)]))
    assert error.value.parameter == "sites"


@pytest.mark.parametrize(
    ("scope", "repairs"), [("layer", True), ("2:4", True), ("row", False), ("global", False)]
)
def test_scopes_in_which_criteria_repair(scope, repairs):
    assert criteria.repairs(criteria.load("sparsegpt"), scope) is repairs
    assert not criteria.repairs(criteria.load("magnitude"), scope)


def test_the_factor_is_of_the_damped_inverse():
    model, site, data = toy(width=12)
    hessian = hessians(model, [site], data, "test")[site.name]
    upper = factor(hessian, 0.1)
    assert torch.equal(upper, upper.triu())
    damped = hessian + 0.1 * hessian.diagonal().mean() * torch.eye(12)
    close(torch.linalg.inv(upper.T @ upper), damped, rtol=1e-8, atol=1e-12)
