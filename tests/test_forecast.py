"""Tokens chosen by a forecast of who will be looked at, and the repair of models that drop tokens."""

import copy
import json

import numpy as np
import pytest
import torch
from test_tokens import KINDS, TEXTS, classifier, texts
from toys import folder_with_model, table_of, toy_session

import espalier
from espalier import (
    Mask,
    TokenSchedule,
    cut,
    dropping_tokens,
    even_schedule,
    load,
    repair,
    save,
    set_schedule,
    sites,
)
from espalier.core.errors import DataError, EspalierError, FormatError, InvalidValueError, UnsupportedError
from espalier.engine.token_places import dropper_of
from espalier.experiment.prune_tokens import prune_tokens
from espalier.testing.tiny import inputs, outputs, same, tiny
from espalier.tokens.forecast import LEAST, STRENGTH, _solve, fit_forecasts, forecast_tokens
from espalier.tokens.installation import schedule_of, survivors
from espalier.training.blockwise import Blockwise

FRACTIONS = (1.0, 0.5, 0.5)
THRESHOLDS = {"vit": 0.059, "deit": 0.056, "dinov2": 0.059}  # which let some tokens stay and others go


def forecasting(model, values=FRACTIONS, batches=None):
    return forecast_tokens(model, TokenSchedule("top", values), batches or [inputs(model, batch=4)])


def test_a_forecast_is_a_ridge_regression_to_the_attention_of_the_layers_above():
    model = tiny("bert", "AutoModelForSequenceClassification", attention="eager")
    batch, _ = texts(model, 9, 6, 7)
    found = fit_forecasts(model, [batch])
    states = []
    hooks = [
        layer.attention.output.register_forward_hook(lambda _, args, out: states.append(out))
        for layer in model.bert.encoder.layer
    ]
    with torch.no_grad():
        maps = model(**batch, output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    for layer in range(3):
        rows, wanted = [], []
        for text, n in enumerate((9, 6, 7)):
            of_all = [maps[i][text, :, :n, :n].mean((0, 1)) for i in range(layer + 1, 2)]
            of_first = maps[2][text, :, 0, :n].mean(0)
            looked = torch.stack([*of_all, of_first]).mean(0).double()
            rows += [np.append(state, 1.0) for state in states[layer][text, :n].double().numpy()]
            wanted += (n * looked).clamp(min=LEAST).log().tolist()
        x, y = np.array(rows), np.array(wanted)
        square = x.T @ x
        penalty = STRENGTH * np.diag(square)[:-1].mean() * np.eye(len(square))
        line = np.linalg.solve(square + penalty, x.T @ y)
        np.testing.assert_allclose(x @ np.array(found[layer]), x @ line, atol=1e-3)


def test_the_tokens_of_the_highest_forecasts_stay_and_no_map_is_computed():
    model = classifier("bert")
    schedule = forecasting(model)
    set_schedule(model, schedule)
    batch, _ = texts(model, 9, 6)
    calls = []
    place = model.bert.encoder.layer[1].attention.output.LayerNorm
    hook = place.register_forward_hook(lambda _, args, out: calls.append(out))
    kept = survivors(model, batch)
    hook.remove()
    assert all(layer.attention.self.config is model.config for layer in model.bert.encoder.layer)
    line = torch.tensor(schedule.forecasts[1])
    score = calls[0] @ line[:-1] + line[-1]
    for text, n in enumerate((9, 6)):
        count = schedule.count(1, n)
        others = score[text, 1:n].argsort(descending=True)[: count - 1] + 1
        assert set(kept[1][text].nonzero().flatten().tolist()) == {0, *others.tolist()}
    assert kept[1].sum() < batch["attention_mask"].sum() * 0.7


@pytest.mark.parametrize("kind", TEXTS)
def test_alone_and_inside_a_batch(kind):
    model = classifier(kind)
    set_schedule(model, forecasting(model))
    together, alone = texts(model, 9, 5, 1, 7)
    found = outputs(model, together)[0]
    for i, one in enumerate(alone):
        torch.testing.assert_close(found[i : i + 1], outputs(model, one)[0], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_with_its_forecasts_comes_back(kind, tmp_path):
    model = classifier(kind)
    batch = inputs(model, batch=3)
    before = outputs(model, batch)
    set_schedule(model, forecasting(model))
    save(model, tmp_path / "saved")
    config = json.loads((tmp_path / "saved/config.json").read_text())
    kept = config["espalier_tokens"]
    assert kept["version"] == 2
    assert [len(each) for each in kept["forecasts"]] == [0, model.config.hidden_size + 1, 0]
    again = load(tmp_path / "saved")
    assert schedule_of(again) == schedule_of(model)
    same(outputs(again, batch), outputs(model, batch), kind, exact=True)
    with pytest.raises(AssertionError):
        same(before, outputs(again, batch), kind)


def test_schedules_without_forecasts_are_written_as_before():
    assert TokenSchedule("top", FRACTIONS).to_dict() == {
        "version": 1,
        "way": "top",
        "values": list(FRACTIONS),
        "least": 1,
        "diagonal": True,
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"way": "top", "forecasts": ((1.0,), (), ())},
        {"way": "forecast", "forecasts": ((1.0,),)},
        {"way": "forecast", "forecasts": ((), (float("nan"),), ())},
    ],
)
def test_forecasts_that_make_no_sense(wrong):
    with pytest.raises(InvalidValueError):
        TokenSchedule(values=FRACTIONS, **wrong)


@pytest.mark.parametrize("forecasts", ["1", [1], [[], ["1"], []], [[], [True], []], [[]] * 2])
def test_damaged_forecasts(forecasts):
    raw = {"version": 2, "way": "forecast", "values": list(FRACTIONS), "forecasts": forecasts}
    with pytest.raises(FormatError):
        TokenSchedule.from_dict(raw)


@pytest.mark.parametrize("forecasts", [(), ((), (1.0, 2.0), ())])
def test_forecasts_of_another_model_are_refused(forecasts):
    with pytest.raises(InvalidValueError, match="forecast"):
        set_schedule(classifier("bert"), TokenSchedule("forecast", FRACTIONS, forecasts=forecasts))


def test_states_that_are_not_finite():
    model = classifier("bert")
    model.bert.embeddings.word_embeddings.weight.data[:] = torch.nan
    with pytest.raises(DataError, match="finite"):
        fit_forecasts(model, [inputs(model, batch=2)])
    with pytest.raises(EspalierError):
        fit_forecasts(classifier("bert"), [])


def test_a_fit_leaves_the_models_own_schedule():
    model = classifier("bert")
    own = TokenSchedule("top", FRACTIONS)
    set_schedule(model, own)
    before = outputs(model, inputs(model))
    forecasting(model)
    assert schedule_of(model) == own
    same(outputs(model, inputs(model)), before, "its own schedule", exact=True)


def unlooking(model, blocks):
    """Let attention of these blocks write nothing: no token then depends on which others are left."""
    for site in sites(model, "heads"):
        if site.block in blocks:
            torch.nn.init.zeros_(site.module("write").weight)


@pytest.mark.parametrize("padding", ["behind", "in front"])
@pytest.mark.parametrize("way", ["top", "forecast", "threshold"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_token_that_is_left_is_fitted_to_its_own_state(kind, way, padding):
    dense = classifier(kind)
    unlooking(dense, list(dict.fromkeys(site.block for site in sites(dense, "heads")))[1:])
    batch = inputs(dense, batch=4) if kind not in TEXTS else texts(dense, 9, 5, 7, 6)[0]
    if padding == "in front" and kind in TEXTS:
        batch = {name: value.flip(1) for name, value in batch.items()}
    values = (THRESHOLDS.get(kind, 0.14), 0.0, 0.0) if way == "threshold" else (0.5, 0.4, 0.4)
    schedule = TokenSchedule("top" if way == "forecast" else way, values)
    schedule = forecast_tokens(dense, schedule, [batch]) if way == "forecast" else schedule
    small = set_schedule(copy.deepcopy(dense), schedule)
    left = survivors(small, batch)
    tokens = batch["attention_mask"].sum() if "attention_mask" in batch else left[0].numel()
    assert 4 < left[0].sum() < tokens
    done = repair(small, dense, [batch])
    assert len(done) == 4  # two sublayers of the two blocks above
    assert all(one.before < 1e-9 for one in done)
    assert done[0].rows == left[0].sum()


@pytest.mark.parametrize("kind", KINDS)
def test_a_repair_brings_a_model_that_drops_tokens_nearer(kind):
    dense = classifier(kind)
    seen = inputs(dense, batch=64)
    small = set_schedule(copy.deepcopy(dense), TokenSchedule("top", (0.5, 0.4, 0.3)))

    def distance():
        return float((outputs(small, seen)[0] - outputs(dense, seen)[0]).square().sum())

    before = distance()
    done = repair(small, dense, [seen])
    assert len(done) == 4
    assert all(one.after <= one.before for one in done)
    assert distance() < before


def test_a_dense_model_that_drops_tokens_is_no_target():
    small = classifier("bert")
    dense = set_schedule(copy.deepcopy(small), TokenSchedule("top", FRACTIONS))
    with pytest.raises(InvalidValueError, match="drops other tokens"):
        repair(small, dense, [inputs(small)])


def test_pruning_tokens_forecasts_and_repairs(tmp_path):
    folder_with_model(tmp_path / "model")
    model, task = str(tmp_path / "model"), str(table_of(tmp_path / "data.tsv", n=240))
    found = espalier.prune(model, task, target="tokens", remove=0.4, calibration=16, folder=tmp_path / "out")
    assert (found["method"], found["repair"]) == ("forecast", "refit")
    assert found["repaired"]
    assert "forecasts" not in found["schedule"]
    again = load(tmp_path / "out")
    assert schedule_of(again).way == "forecast"
    assert dropper_of(again) is not None
    plain = espalier.prune(model, task, target="tokens", remove=0.4, calibration=16, repair="none")
    assert plain["repaired"] == []
    assert plain["left"] == pytest.approx(found["left"], abs=0.1)


def test_a_tolerance_by_forecasts(monkeypatch):
    session = toy_session()
    small, facts = prune_tokens(session, None, tolerance=0.9, least=1)
    assert facts["method"] == "forecast"
    assert facts["removed"] > 0.5
    assert any(schedule_of(small).forecasts)
    monkeypatch.setattr(
        "espalier.experiment.prune_tokens.measure_split", lambda *_: {session.task.metric: 0.0}
    )
    small, facts = prune_tokens(session, None, tolerance=0.001)
    assert (facts["removed"], facts["repaired"]) == (0, [])


def test_one_stage_needs_one_forecast():
    model = classifier("bert")
    schedule = forecasting(model, even_schedule(3, 0.4, stages=1, after=1, last=True).values)
    assert [bool(each) for each in schedule.forecasts] == [False, True, False]
    assert not any(schedule.needs_maps(layer) for layer in range(3))


def test_models_that_drop_the_same_tokens_are_repaired_on_all():
    dense = classifier("bert")
    batch = inputs(dense, batch=32)
    mask = Mask.without(sites(dense, "heads"), {0: [1, 2], 1: [0]})
    wanted = cut(copy.deepcopy(dense), mask, report=False)
    repair(wanted, dense, [batch])
    dropping = set_schedule(copy.deepcopy(dense), TokenSchedule("top", FRACTIONS))
    small = cut(copy.deepcopy(dropping), mask, report=False)
    before = outputs(small, batch)
    assert repair(small, dropping, [batch])
    for (name, a), (_, b) in zip(small.named_parameters(), wanted.named_parameters()):
        torch.testing.assert_close(a, b, msg=name)
    assert schedule_of(small) == schedule_of(dropping)
    assert survivors(small, batch)[1].sum() < survivors(small, batch)[0].sum()
    with pytest.raises(AssertionError):
        same(outputs(small, batch), before, "repaired")
    same(outputs(small, batch), outputs(set_schedule(wanted, schedule_of(small)), batch), "dropping")


def test_heads_of_a_model_that_drops_tokens_are_pruned_to_a_budget(tmp_path):
    folder_with_model(tmp_path / "model")
    model, task = str(tmp_path / "model"), str(table_of(tmp_path / "data.tsv", n=240))
    first = espalier.prune(
        model, task, target="tokens", remove=0.4, calibration=16, folder=tmp_path / "out", least=1
    )
    again = espalier.prune(str(tmp_path / "out"), task, macs=0.6, calibration=16)
    assert schedule_of(again.model) == schedule_of(first.model)
    assert again["after"]["macs"] < first["after"]["macs"]


def test_merged_tokens_are_not_repaired(tmp_path):
    dense = classifier("bert")
    small = set_schedule(copy.deepcopy(dense), TokenSchedule("merge", FRACTIONS))
    with pytest.raises(InvalidValueError, match="merged"):
        repair(small, dense, [inputs(dense)])
    _, facts = prune_tokens(toy_session(), "merge", remove=0.3)
    assert (facts["repair"], facts["repaired"]) == ("none", [])
    with pytest.raises(InvalidValueError) as error:
        prune_tokens(toy_session(), "merge", remove=0.3, repair="refit")
    assert error.value.parameter == "repair"


@pytest.mark.parametrize("values", [(0.5,), (1.0, 0.5, 0.5, 0.5)])
def test_a_schedule_of_another_number_of_layers(values):
    model = classifier("bert")
    with pytest.raises(InvalidValueError) as error:
        forecast_tokens(model, TokenSchedule("top", values), [inputs(model)])
    assert error.value.parameter == "values"
    with pytest.raises(InvalidValueError) as error:
        prune_tokens(toy_session(), None, values=list(values))
    assert error.value.parameter == "values"


def test_thresholds_are_no_fractions():
    model = classifier("bert")
    with pytest.raises(InvalidValueError, match="threshold"):
        forecast_tokens(model, TokenSchedule("threshold", (0.1, 0.0, 0.0)), [inputs(model)])


def test_forecasts_are_numbers_that_float32_holds():
    line = (1,) * 3
    schedule = TokenSchedule("forecast", (1.0, 0.5), forecasts=[[], line])
    assert schedule.forecasts == ((), (1.0, 1.0, 1.0))
    assert hash(schedule)
    for wrong in (10**400, 1e31, "x"):
        with pytest.raises(InvalidValueError):
            TokenSchedule("forecast", (1.0, 0.5), forecasts=((), (wrong,)))


def test_another_default_dtype_changes_nothing():
    model = classifier("bert")
    set_schedule(model, forecasting(model))
    before = outputs(model, inputs(model))
    torch.set_default_dtype(torch.float64)
    try:
        same(outputs(model, inputs(model)), before, "float64 by default")
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_fit_on_any_device():
    meta = [torch.zeros(shape, dtype=torch.float64, device="meta") for shape in ((5, 5), (5,))]
    with pytest.raises(NotImplementedError):  # only the numbers cannot be read, at the end
        _solve(*meta, 1e-3)


def test_a_text_of_padding_alone_is_left_out():
    model = classifier("bert")
    batch, _ = texts(model, 9, 6)
    empty = {name: torch.cat([value, torch.zeros_like(value[:1])]) for name, value in batch.items()}
    for a, b in zip(fit_forecasts(model, [empty]), fit_forecasts(model, [batch])):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_inside_a_context_tokens_are_known_to_be_dropped():
    model = classifier("bert")
    with dropping_tokens(model, TokenSchedule("top", FRACTIONS)):
        assert dropper_of(model) is not None
        with pytest.raises(InvalidValueError, match="drops"):
            repair(copy.deepcopy(classifier("bert")), model, [inputs(model)])
    assert dropper_of(model) is None


def test_what_cannot_be_done_with_fewer_tokens_is_refused(tmp_path):
    dense = classifier("bert")
    small = set_schedule(copy.deepcopy(dense), TokenSchedule("top", FRACTIONS))
    with pytest.raises(UnsupportedError, match="tokens"):
        Blockwise(dense)(small, inputs(dense))
    with pytest.raises(UnsupportedError, match="tokens"):
        espalier.export(small, tmp_path / "out", to="onnx")


def test_short_texts_are_read_whole():
    small, _ = prune_tokens(toy_session(), None, remove=0.5)
    batch, _ = texts(small, 3, 8, 30)
    kept = survivors(small, batch)
    assert kept[1].sum(1).tolist()[:2] == [3, 8]
    assert kept[1].sum(1)[2] < 30


def test_a_picture_by_a_forecast_needs_one(tmp_path):
    folder_with_model(tmp_path / "model")
    with pytest.raises(InvalidValueError) as error:
        espalier.show_tokens(str(tmp_path / "model"), "ba be bi", method="forecast", remove=0.5)
    assert error.value.parameter == "method"
    shown = espalier.show_tokens(str(tmp_path / "model"), "ba " * 400, remove=0.5)
    assert len(shown["tokens"]) > 10
