"""Dropping tokens: what is scored, what is kept, that it is really gone, and that batches do not matter."""

import copy
import itertools
import json
from dataclasses import replace

import pytest
import torch
import toys
from torch.utils.flop_counter import FlopCounterMode
from toys import folder_with_model, table_of, toy_session
from transformers import AutoModelForSequenceClassification

import espalier
from espalier import Mask, TokenSchedule, cut, dropping_tokens, even_schedule, load, save, set_schedule, sites
from espalier.analysis.picture import read_tokens
from espalier.architectures.table import architectures
from espalier.core.errors import EspalierError, FolderError, FormatError, InvalidValueError, UnsupportedError
from espalier.engine.token_places import dropper_of
from espalier.experiment.prune_tokens import prune_tokens
from espalier.reports.survivors import add_picture
from espalier.testing.tiny import inputs, outputs, same, tiny, uneven
from espalier.tokens import dropper
from espalier.tokens.attention import attend, received
from espalier.tokens.cost import dropped_macs
from espalier.tokens.forecast import forecast_tokens
from espalier.tokens.installation import schedule_of, survivors
from espalier.tokens.picture import picture_of
from espalier.training.distillation import Distillation, warn_if_equal

KINDS = sorted(kind for kind, table in architectures().items() if kind in table.drops_tokens)
TEXTS = [kind for kind in KINDS if kind not in ("vit", "deit", "dinov2")]
HALF = (0.8, 0.5, 0.3)


def classifier(kind, **more):
    images = kind in ("vit", "deit", "dinov2")
    top = "AutoModelForImageClassification" if images else "AutoModelForSequenceClassification"
    return tiny(kind, top, **more)


def texts(model, *lengths):
    """A padded batch, and each text alone without padding."""
    draw = torch.Generator().manual_seed(3)
    rows = [torch.randint(4, 60, (1, n), generator=draw) for n in lengths]
    longest, padding = max(lengths), model.config.pad_token_id or 0
    ids = torch.cat([torch.nn.functional.pad(r, (0, longest - r.shape[1]), value=padding) for r in rows])
    mask = torch.stack([torch.arange(longest) < n for n in lengths]).long()
    return {"input_ids": ids, "attention_mask": mask}, [{"input_ids": row} for row in rows]


def maps(batch=2, heads=3, tokens=6, real=None):
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(batch, heads, tokens, tokens, generator=draw)
    if real is not None:
        scores = scores.masked_fill(~real[:, None, None], -torch.inf)
    return scores.softmax(-1)


def test_what_tokens_receive_adds_up_to_one_and_padding_receives_and_gives_nothing():
    every = torch.ones(2, 6, dtype=torch.bool)
    found = received(maps(), every)
    torch.testing.assert_close(found.sum(1), torch.ones(2))
    assert found.std() > 1e-3
    real = every.clone()
    real[1, 4:] = False
    found = received(maps(real=real), real)
    torch.testing.assert_close(found.sum(1), torch.ones(2))
    assert (found[1, 4:] == 0).all()
    torch.testing.assert_close(found[1, :4], maps(real=real)[1, :, :4, :4].mean((0, 1)))


def test_reading_rows_instead_of_columns_gives_the_same_to_all():
    by_row = maps().mean(1).sum(-1) / 6
    assert by_row.std() < 1e-6


def test_scores_follow_a_permutation():
    found, order = maps(1), torch.randperm(6, generator=torch.Generator().manual_seed(1))
    every = torch.ones(1, 6, dtype=torch.bool)
    torch.testing.assert_close(
        received(found, every)[:, order], received(found[..., order, :][..., order], every)
    )


def test_without_the_diagonal_a_token_that_only_sees_itself_receives_nothing():
    every = torch.ones(1, 4, dtype=torch.bool)
    assert (received(torch.eye(4).expand(1, 2, 4, 4), every, diagonal=False) == 0).all()


@pytest.mark.parametrize("form", ["none", "bool", "float"])
def test_our_attention_is_that_of_torch(form):
    draw = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 8, generator=draw).unbind(0)
    mask = None if form == "none" else (torch.rand(2, 1, 5, 5, generator=draw) > 0.3) | torch.eye(5).bool()
    given = mask if form != "float" else torch.zeros(2, 1, 5, 5).masked_fill(~mask, -1e30)
    out, _ = attend(torch.nn.Identity(), q, k, v, given)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(out, want.transpose(1, 2))


@pytest.mark.parametrize("way", ["top", "threshold", "merge"])
@pytest.mark.parametrize("kind", KINDS)
def test_keeping_all_is_the_dense_model(kind, way):
    model = classifier(kind)
    given = inputs(model)
    if "attention_mask" in given:
        given["attention_mask"][0, :3] = 1
    dense = outputs(model, given)
    keep = 1e-9 if way == "threshold" else 1.0
    with dropping_tokens(model, TokenSchedule(way, (keep,) * 3)):
        same(outputs(model, given), dense, kind)
    same(outputs(model, given), dense, "afterwards", exact=True)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "schedule",
    [
        TokenSchedule("top", HALF),
        TokenSchedule("top", (1.0, 0.5, 0.0), diagonal=False),
        TokenSchedule("threshold", (0.09, 0.12, 0.15)),
        TokenSchedule("merge", HALF),
    ],
    ids=lambda s: s.way,
)
@pytest.mark.parametrize("kind", TEXTS)
def test_alone_and_inside_a_batch(kind, schedule, implementation):
    model = classifier(kind, attention=implementation)
    batch, singles = texts(model, 12, 5, 9, 1)
    with dropping_tokens(model, schedule), torch.no_grad():
        together = model(**batch).logits
        alone = torch.cat([model(**one).logits for one in singles])
    same([together], [alone], kind)
    with torch.no_grad():
        assert not torch.allclose(model(**batch).logits[:3], together[:3], atol=1e-6)


@pytest.mark.parametrize("way", ["top", "merge"])
@pytest.mark.parametrize("kind", ["vit", "dinov2"])
def test_images_too(kind, way):
    model = classifier(kind)
    given = inputs(model, batch=3)
    with dropping_tokens(model, TokenSchedule(way, HALF)) as dropper:
        together = outputs(model, given)
        kept = [k.sum(1).tolist() for k in dropper.state.kept]
        alone = [outputs(model, {"pixel_values": one[None]}) for one in given["pixel_values"]]
    same(together, [torch.cat(one) for one in zip(*alone)], kind)
    tokens = 1 + (model.config.image_size // model.config.patch_size) ** 2
    assert kept[0] == [even_counts(tokens, 0.8)] * 3


def even_counts(tokens, share):
    return -int(-share * tokens // 1)


def test_an_image_of_another_size():
    model = classifier("vit")
    large = torch.randn(1, 3, 32, 24)
    with dropping_tokens(model, TokenSchedule("top", HALF)) as dropper, torch.no_grad():
        model(pixel_values=large, interpolate_pos_encoding=True)
        assert dropper.state.tokens == 1 + 8 * 6
        with pytest.raises(ValueError, match="size"):
            model(pixel_values=large)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "distilbert"])
def test_what_is_dropped_changes_nothing_later(kind):
    """The states of dropped tokens are replaced by noise: the rest of the model must not notice."""
    model = classifier(kind)
    batch, _ = texts(model, 12, 8)
    with dropping_tokens(model, TokenSchedule("top", (0.5, 0.5, 0.5))) as dropper, torch.no_grad():
        want = model(**batch).logits
        put = dropper._put

        def noisy(hidden):
            full = put(hidden)
            gone = torch.ones(full.shape[:2], dtype=torch.bool)
            places = torch.where(dropper.state.real, dropper.state.places, dropper.state.tokens)
            return torch.where(gone.scatter(1, places, False)[..., None], torch.nan, full)

        dropper._put = noisy
        got = model(**batch).logits
    same([got], [want], kind, exact=True)


def test_counts_and_the_first_token():
    model = classifier("bert")
    set_schedule(model, TokenSchedule("top", HALF))
    batch, _ = texts(model, 15, 8)
    kept = survivors(model, batch)
    assert [k.sum(1).tolist() for k in kept] == [[12, 7], [8, 4], [5, 3]]
    assert all(k[:, 0].all() for k in kept)
    assert all(bool((b <= a).all()) for a, b in itertools.pairwise(kept))
    assert not kept[0][1, 8:].any()


def test_every_token_below_the_threshold_leaves_the_first():
    model = classifier("bert")
    batch, _ = texts(model, 9, 4)
    set_schedule(model, TokenSchedule("threshold", (1.0, 1.0, 1.0), least=1))
    assert [k.sum(1).tolist() for k in survivors(model, batch)] == [[1, 1]] * 3
    set_schedule(model, TokenSchedule("threshold", (1.0, 1.0, 1.0), least=3))
    assert [k.sum(1).tolist() for k in survivors(model, batch)] == [[3, 3]] * 3


def test_only_the_first_token_after_the_last_attention_is_exact_for_a_classifier():
    model = classifier("bert")
    batch, _ = texts(model, 11, 6)
    dense = outputs(model, batch)
    with dropping_tokens(model, TokenSchedule("top", (1.0, 1.0, 0.0))):
        same(outputs(model, batch), dense, "last layer")


def test_merging_weighs_by_size():
    from espalier.tokens.merge import merge_similar

    keys = torch.tensor([[[1.0, 0], [1.0, 0.1], [0, 1.0], [0, 1.0]]])
    hidden = torch.tensor([[[0.0], [1.0], [2.0], [6.0]]])
    sizes, real = torch.tensor([[1.0, 1, 3, 1]]), torch.ones(1, 4, dtype=torch.bool)
    merged, sizes, kept = merge_similar(keys, hidden, sizes, real, torch.tensor([3]))
    assert kept.tolist() == [[True, True, False, True]]
    assert sizes[0, 3] == 4
    assert merged[0, 3, 0] == pytest.approx((3 * 2 + 6) / 4)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "vit"])
def test_together_with_heads_and_neurons_and_after_saving(kind, tmp_path):
    model = classifier(kind)
    model = cut(model, uneven(sites(model), 1), report=False)
    set_schedule(model, TokenSchedule("top", HALF))
    given = inputs(model) if kind == "vit" else texts(model, 12, 5)[0]
    want = outputs(model, given)
    save(model, tmp_path / "small")
    loaded = load(tmp_path / "small")
    assert schedule_of(loaded) == TokenSchedule("top", HALF)
    same(outputs(loaded, given), want, "loaded", exact=True)
    same(outputs(type(model).from_pretrained(tmp_path / "small"), given), want, "from_pretrained", exact=True)
    same(outputs(copy.deepcopy(loaded), given), want, "copied", exact=True)
    set_schedule(loaded, None)
    assert any(not torch.equal(a, b) for a, b in zip(outputs(loaded, given), want))
    save(loaded, tmp_path / "plain")
    assert schedule_of(load(tmp_path / "plain")) is None


def test_an_unpruned_model_keeps_its_schedule_through_transformers(tmp_path):
    model = classifier("bert")
    set_schedule(model, TokenSchedule("top", HALF))
    batch, _ = texts(model, 12, 5)
    want = outputs(model, batch)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    same(outputs(loaded, batch), want, "loaded", exact=True)
    assert len(loaded.bert.encoder.layer[0]._forward_pre_hooks) == 1


def test_a_copy_drops_by_itself_and_a_training_step_leaves_nothing():
    model = classifier("bert")
    set_schedule(model, TokenSchedule("top", HALF))
    batch, _ = texts(model, 12, 5)
    model(**batch, labels=torch.tensor([0, 1])).loss.backward()
    other = copy.deepcopy(model)
    assert dropper_of(other) is not dropper_of(model)
    set_schedule(model, None)
    assert [k.sum(1).tolist()[0] for k in survivors(other, batch)] == [10, 6, 4]
    assert all(p.grad is not None for p in model.bert.encoder.layer[2].parameters())


def test_the_schedule_inside_is_instead_of_the_models_own():
    model = classifier("bert")
    batch, _ = texts(model, 12)
    set_schedule(model, TokenSchedule("top", HALF))
    own = outputs(model, batch)
    with dropping_tokens(model, TokenSchedule("top", (1.0,) * 3)):
        dense = outputs(model, batch)
    same(outputs(model, batch), own, "again", exact=True)
    set_schedule(model, None)
    same(outputs(model, batch), dense, "dense")


def test_even_schedules_remove_what_they_say():
    for layers in (1, 6, 12):
        for remove in (0.0, 0.3, 0.5, 0.8):
            found = even_schedule(layers, remove)
            assert found.removed == pytest.approx(remove, abs=1e-5)
    assert even_schedule(6, 0.5, last=True).values[-1] == 0
    assert even_schedule(6, 0.5, last=True).removed == pytest.approx(0.5, abs=1e-5)
    for after, stages, last in ((1, 1, True), (2, 3, False), (2, 1, True), (0, 2, True)):
        found = even_schedule(6, 0.5, after=after, stages=stages, last=last)
        assert found.removed == pytest.approx(0.5, abs=1e-5)
        assert found.values[:after] == (1.0,) * after
        assert sum(map(found.acts, range(6))) == stages + last
    for wrong in ({"after": 3}, {"after": 6}, {"after": -1}, {"stages": 0}, {"stages": 7}, {"stages": 1.5}):
        with pytest.raises(InvalidValueError) as error:
            even_schedule(6, 0.5, **wrong)
        assert error.value.parameter == next(iter(wrong))


def test_a_layer_that_keeps_the_first_token_only_needs_no_scores():
    schedule = TokenSchedule("top", (0.5, 0.5, 0.0))
    assert [schedule.needs_scores(layer) for layer in range(3)] == [True, False, False]
    schedule = TokenSchedule("top", (0.5, 0.5, 0.0), least=2)
    assert not schedule.needs_scores(2)
    assert (schedule.count(1, 2), schedule.count(2, 9)) == (2, 1)
    assert TokenSchedule("merge", (0.5, 0.5, 0.5)).needs_scores(1)
    model = classifier("bert")
    batch, _ = texts(model, 9, 5)
    dense = outputs(model, batch)
    with dropping_tokens(model, TokenSchedule("top", (1.0, 1.0, 0.0))):
        assert not any(hasattr(module, "token_state") for module in model.modules())
        same(outputs(model, batch), dense, "first token only")


@pytest.mark.parametrize(
    "wrong",
    [
        {"way": "top", "values": ()},
        {"way": "top", "values": (1.1,)},
        {"way": "top", "values": (-0.1,)},
        {"way": "threshold", "values": (float("nan"),)},
        {"way": "top", "values": (0.5, 0.6)},
        {"way": "best", "values": (0.5,)},
        {"way": "top", "values": (0.5,), "least": 0},
    ],
)
def test_schedules_that_make_no_sense(wrong):
    with pytest.raises(InvalidValueError):
        TokenSchedule(**wrong)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        {"version": 3, "way": "top", "values": [1.0]},
        {"version": 1, "way": "top", "values": "1"},
    ],
)
def test_damaged_schedules(raw):
    with pytest.raises(FormatError):
        TokenSchedule.from_dict(raw)


def test_a_damaged_schedule_in_a_folder_is_refused(tmp_path):
    model = classifier("bert")
    set_schedule(model, TokenSchedule("top", HALF))
    save(model, tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    config.write_text(config.read_text().replace('"top"', '"nothing"'))
    with pytest.raises(EspalierError):
        load(tmp_path / "m")


@pytest.mark.parametrize(("kind", "layers"), [("gpt2", 3), ("deberta-v2", 3), ("t5", 6)])
def test_models_whose_tokens_cannot_be_dropped(kind, layers):
    model = tiny(kind)
    with pytest.raises(UnsupportedError), dropping_tokens(model, TokenSchedule("top", (1.0,) * layers)):
        pass


def test_a_schedule_for_another_number_of_layers():
    with pytest.raises(InvalidValueError):
        set_schedule(tiny("bert"), TokenSchedule("top", (1.0,) * 4))
    assert dropper_of(tiny("bert")) is None


@pytest.mark.parametrize("kind", ["bert", "modernbert", "vit", "distilbert"])
def test_the_cost_is_what_torch_counts(kind):
    model = tiny(kind, attention="eager")
    removed = {site.name: [0, 3] for site in sites(model) if not site.name.startswith("layers.1")}
    model = cut(model, Mask.without(sites(model), removed), report=False)
    given = {k: v[:1] if isinstance(v, torch.Tensor) else v for k, v in inputs(model).items()}
    given.pop("attention_mask", None)

    def count(schedule):
        with dropping_tokens(model, schedule), FlopCounterMode(display=False) as counter, torch.no_grad():
            model(**given)
        return counter.get_total_flops() // 2

    full, fewer = TokenSchedule("top", (1.0,) * 3), TokenSchedule("top", HALF)
    lines = forecast_tokens(model, fewer, [given])
    for schedule in (fewer, lines):
        saved = dropped_macs(model, full, 17) - dropped_macs(model, schedule, 17)
        assert count(full) - count(schedule) == saved > 0


@pytest.mark.parametrize("kind", ["bert", "vit"])
@pytest.mark.parametrize("values", [(0.3, 0.3, 0.3), (0.5, 0.2, 0.2)])
def test_the_cost_of_merging_where_neighbours_are_equal(kind, values, monkeypatch):
    """At most half of the tokens merge at once, and a layer with the value of the one before merges none."""
    model, compared = tiny(kind, attention="eager"), []
    given = {k: v[:1] if isinstance(v, torch.Tensor) else v for k, v in inputs(model, tokens=18).items()}
    given.pop("attention_mask", None)
    merge = dropper.merge_similar

    def watch(keys, *rest):
        compared.append(keys.shape[1] ** 2 * keys.shape[2])
        return merge(keys, *rest)

    monkeypatch.setattr(dropper, "merge_similar", watch)

    def count(schedule):
        with dropping_tokens(model, schedule) as found, FlopCounterMode(display=False) as counter:
            with torch.no_grad():
                model(**given)
            tokens = found.state.tokens
        return counter.get_total_flops() // 2, tokens

    full, fewer = TokenSchedule("merge", (1.0,) * 3), TokenSchedule("merge", values)
    (whole, tokens), (less, _) = count(full), count(fewer)
    less -= sum(compared)
    assert whole - less == dropped_macs(model, full, tokens) - dropped_macs(model, fewer, tokens)


def test_a_schedule_of_the_same_form_removes_another_fraction():
    own = TokenSchedule("top", (1.0, 0.6, 0.6, 0.0), least=2, diagonal=False)
    other = own.removing(0.6)
    assert other.removed == pytest.approx(0.6, abs=1e-5)
    assert (other.values[0], other.values[3]) == (1.0, 0.0)
    assert 0 < other.values[1] == other.values[2] < 0.6
    assert (other.least, other.diagonal) == (2, False)
    assert own.removing(own.removed).values == pytest.approx(own.values, abs=1e-5)
    for wrong in (0.1, 0.8, 1.0, float("nan")):
        with pytest.raises(InvalidValueError) as error:
            own.removing(wrong)
        assert error.value.parameter == "remove"
    with pytest.raises(InvalidValueError):
        TokenSchedule("threshold", (0.1, 0.2)).removing(0.5)


def test_pruning_tokens_as_a_user_does(tmp_path):
    folder_with_model(tmp_path / "model")
    task = str(table_of(tmp_path / "data.tsv", n=240))
    small = espalier.prune(
        str(tmp_path / "model"),
        task,
        "top",
        target="tokens",
        remove=0.5,
        folder=tmp_path / "small",
        calibration=16,
        least=1,
    )
    assert small["removed"] == pytest.approx(0.5, abs=0.1)
    assert small["after"]["macs"] < small["before"]["macs"]
    assert len(small["left"]) == 3
    assert schedule_of(small.model).way == "top"
    again = espalier.evaluate(str(tmp_path / "small"), task)
    assert again["test"]["accuracy"] == small["after"]["test"]["accuracy"]
    assert again["macs"] == small["after"]["macs"]
    measured = espalier.measure([tmp_path / "small"], max_length=16, rounds=1)
    assert measured["models"][0]["token_schedule"]["way"] == "top"
    shown = espalier.show_tokens(str(tmp_path / "small"), "ba be bi bo bu", figure=tmp_path / "picture.png")
    left = [layer["left"] for layer in shown["layers"]]
    assert left == sorted(left, reverse=True)
    assert (tmp_path / "picture.png").is_file()
    own = schedule_of(small.model)
    shown = espalier.show_tokens(str(tmp_path / "small"), "ba be bi bo bu", remove=0.6)  # in its own form
    assert shown["schedule"] == own.removing(0.6).to_dict()
    shown = espalier.show_tokens(str(tmp_path / "model"), "ba be bi bo bu", remove=0.5)  # as prune would
    assert shown["schedule"] == replace(own, least=8).to_dict()
    merged = espalier.show_tokens(str(tmp_path / "small"), "ba be bi bo bu", remove=0.3, method="merge")
    assert merged["schedule"]["way"] == "merge"
    with pytest.raises(InvalidValueError) as error:
        espalier.show_tokens(str(tmp_path / "small"), "ba be", method="merge")
    assert error.value.parameter == "remove"


def test_the_picture_of_a_text_tells_who_is_left_and_the_scores_of_those_who_were_there():
    model, text = classifier("bert"), " ".join(toys.WORDS[:10])
    set_schedule(model, TokenSchedule("top", HALF))
    found = picture_of(model, toys.tokenizer(), text, 64)
    assert len(found["tokens"]) == 12
    batch = toys.tokenizer()(text, return_tensors="pt")
    kept = [one[0].tolist() for one in survivors(model, {"input_ids": batch["input_ids"]})]
    assert [layer["kept"] for layer in found["layers"]] == kept
    assert found["kept"] == [round(sum(one) / len(kept), 4) for one in zip(*kept)]
    there = [True] * 12
    for layer in found["layers"]:
        assert [score is not None for score in layer["scores"]] == there
        gone = [x for i, x in enumerate(layer["scores"]) if there[i] and not layer["kept"][i]]
        stay = [x for i, x in enumerate(layer["scores"]) if layer["kept"][i] and i]
        assert not stay or max(gone) <= min(stay)  # the first token stays whatever it scores
        there = layer["kept"]


def test_a_text_is_added_to_the_page_of_a_run_of_a_model_that_drops_tokens(tmp_path):
    model = str(folder_with_model(tmp_path / "model"))
    task = str(table_of(tmp_path / "data.tsv", n=240))
    espalier.prune(model, task, target="tokens", remove=0.4, calibration=8, folder=tmp_path / "small")
    run, given = tmp_path / "run", {"methods": ["magnitude"], "calibration": 8, "test": 20, "validation": 20}
    espalier.compare(str(tmp_path / "small"), task, folder=run, **given)
    (results,) = espalier.report([run], tmp_path / "page.html").results
    assert len(results.tokens["texts"]) == 3
    for _ in range(2):  # the second time it is there already
        espalier.show_tokens(str(tmp_path / "small"), "ba be bi bo bu", run=run)
    found = read_tokens(run / "tokens.json")["texts"]
    assert [one["tokens"][1] for one in found[3:]] == ["ba"]
    assert read_tokens(run / "tokens.json")["title"] == "Tokens of small"
    espalier.show_tokens(model, "ba be bi bo bu", remove=0.5, run=run)
    both = read_tokens(run / "tokens.json")
    assert both["title"] == "Tokens of small, model"
    assert [one["model"] for one in both["texts"]] == ["small"] * 4 + ["model"]
    assert both["texts"][3]["tokens"] == both["texts"][4]["tokens"]  # one text, read by two
    with pytest.raises(FolderError):
        espalier.show_tokens(str(tmp_path / "small"), "ba be", run=tmp_path / "small")
    damaged = json.loads((run / "tokens.json").read_text())
    damaged["texts"][0]["layers"][0]["scores"].pop()
    (run / "tokens.json").write_text(json.dumps(damaged))
    with pytest.raises(FormatError):
        read_tokens(run / "tokens.json")


@pytest.mark.parametrize(
    ("title", "then", "first"), [("Tokens of a", "Tokens of a, b", "a"), ("Mine", "Mine", "")]
)
def test_texts_that_do_not_name_their_model_are_of_the_one_in_the_title(title, then, first, tmp_path):
    (tmp_path / "rows.jsonl").touch()
    text = {"tokens": ["ba"], "kept": [1.0]}
    (tmp_path / "tokens.json").write_text(json.dumps({"title": title, "texts": [text]}))
    found = read_tokens(add_picture(tmp_path, "b", text))
    assert (found["title"], [one["model"] for one in found["texts"]]) == (then, [first, "b"])


@pytest.mark.parametrize("method", ["threshold", "merge"])
def test_other_ways_and_a_tolerance(method, tmp_path):
    model = str(folder_with_model(tmp_path / "model"))
    task = str(table_of(tmp_path / "data.tsv", n=240))
    found = espalier.prune(model, task, method, target="tokens", remove=0.4, calibration=16, least=1)
    assert found["schedule"]["way"] == method
    assert 0.2 < found["removed"] < 0.7
    near = espalier.prune(model, task, method, target="tokens", tolerance=0.9, calibration=16, least=1)
    assert near["removed"] > found["removed"]


def test_a_tolerance_that_allows_nothing_keeps_the_way(monkeypatch):
    """The schedule that is recorded, and saved with the model, is of the method that was asked for."""
    session = toy_session()
    monkeypatch.setattr(
        "espalier.experiment.prune_tokens.measure_split", lambda *_: {session.task.metric: 0.0}
    )
    for method in ("threshold", "merge", "top"):
        _, facts = prune_tokens(session, method, tolerance=0.001)
        assert facts["method"] == facts["schedule"]["way"] == method
        assert facts["removed"] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"remove": 0.5, "tolerance": 0.1},
        {"remove": 1.0},
        {"remove": 0.5, "speedup": 2},
        {"remove": 0.5, "epochs": 1},
        {"remove": 0.5, "method": "gnorm"},
        {"values": [0.5, 0.9]},
        {"remove": 0.5, "stage": 0.1},
        {"remove": 0.5, "method": "merge", "repair": "foo"},
    ],
)
def test_wrong_ways_to_prune_tokens(wrong, tmp_path):
    with pytest.raises(InvalidValueError):
        espalier.prune(str(tmp_path), "demo", target="tokens", **wrong)


def test_a_model_that_drops_tokens_learns_from_one_that_reads_all(caplog):
    dense = tiny("bert", "AutoModelForSequenceClassification")
    small = copy.deepcopy(dense)
    set_schedule(small, TokenSchedule("top", (0.5,) * small.config.num_hidden_layers))
    batch = {**inputs(dense, batch=3), "labels": torch.tensor([0, 1, 0])}
    loss = Distillation(dense)(small, batch)
    loss.backward()
    assert loss.isfinite()
    warn_if_equal(small, dense)  # the weights are equal, what they read is not
    assert not caplog.records
    warn_if_equal(copy.deepcopy(dense), dense)
    assert caplog.records


@pytest.mark.parametrize("threshold", [0.10, 0.114, 0.12, 0.13])
def test_a_text_that_keeps_all_tokens_beside_others_that_lose_some(threshold):
    """The batch stays as wide as it was, so that its shape does not tell that tokens have moved."""
    model = tiny("bert", "AutoModelForTokenClassification")
    ids = torch.randint(4, 60, (6, 8), generator=torch.Generator().manual_seed(0))
    schedule = TokenSchedule("threshold", (threshold,) * model.config.num_hidden_layers)
    with torch.no_grad(), dropping_tokens(model, schedule):
        together = model(input_ids=ids).logits
        alone = torch.cat([model(input_ids=one[None]).logits for one in ids])
    assert torch.allclose(together, alone, atol=1e-5)
