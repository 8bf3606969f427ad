"""Tokens chosen by a forecast of who will be looked at, and the repair of models that drop tokens."""

import copy
import json

import numpy as np
import pytest
import torch
from test_tokens import KINDS, TEXTS, classifier, texts
from toys import folder_with_model, table_of, toy_session

import espalier
from espalier import TokenSchedule, even_schedule, load, repair, save, set_schedule, sites
from espalier.core.errors import DataError, EspalierError, FormatError, InvalidValueError
from espalier.engine.token_places import dropper_of
from espalier.experiment.prune_tokens import prune_tokens
from espalier.testing.tiny import inputs, outputs, same, tiny
from espalier.tokens.forecast import LEAST, STRENGTH, fit_forecasts, forecast_tokens
from espalier.tokens.installation import schedule_of, survivors

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


@pytest.mark.parametrize("way", ["top", "forecast", "threshold"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_token_that_is_left_is_fitted_to_its_own_state(kind, way):
    dense = classifier(kind)
    unlooking(dense, list(dict.fromkeys(site.block for site in sites(dense, "heads")))[1:])
    batch = inputs(dense, batch=4) if kind not in TEXTS else texts(dense, 9, 5, 7, 6)[0]
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
    with pytest.raises(InvalidValueError, match="drops tokens"):
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
    small, facts = prune_tokens(session, None, tolerance=0.9)
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
