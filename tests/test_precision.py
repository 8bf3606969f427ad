"""bf16 is close to fp32, is chosen only where it is faster, and is recorded."""

import pytest
import torch
import toys

from espalier.core import distributed
from espalier.core.errors import ConflictError, UnknownNameError
from espalier.engine import precision
from espalier.experiment.method import parse_method
from espalier.experiment.runner import run_comparison
from espalier.io.files import read_json


@pytest.mark.parametrize(("ratio", "want"), [(0.1, "fp32"), (1.1, "fp32"), (2.0, "bf16")])
def test_auto_chooses_what_is_faster_here(monkeypatch, ratio, want):
    monkeypatch.setattr(precision, "speed_up", lambda _: ratio)
    assert precision.resolved("auto") == want
    assert precision.resolved("fp32") == "fp32"
    assert precision.resolved("bf16") == "bf16"
    with pytest.raises(UnknownNameError) as error:
        precision.resolved("bf1")
    assert (error.value.parameter, error.value.nearest) == ("precision", "bf16")


def test_the_ratio_is_measured():
    assert precision.speed_up.__wrapped__("cpu") > 0


def test_all_processes_compute_in_the_same_precision(monkeypatch):
    """One measured that bf16 is a little slower, the other that it is three times as fast."""
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    for here, there in ((0.9, 3.0), (3.0, 0.9)):
        monkeypatch.setattr(precision, "speed_up", lambda _, here=here: here)
        monkeypatch.setattr(distributed, "all_sum", lambda values, there=there: values + there)
        assert precision.resolved("auto") == "bf16"


def test_scores_and_predictions_in_bf16_are_close(tmp_path):
    full, half = toys.toy_session(), toys.toy_session(precision="bf16")
    methods = [parse_method(label, "heads") for label in ("gnorm:static", "taylor:static")]
    for session, name in ((full, "full"), (half, "half")):
        run_comparison(session, methods, tmp_path / name, remove=[1.0], test=False)
    dtypes = set()
    handle = half.model.classifier.register_forward_hook(lambda *x: dtypes.add(x[2].dtype))
    half.predict(half.model, "validation")
    handle.remove()
    assert dtypes == {torch.bfloat16}
    a, b = full.predict(full.model, "test"), half.predict(half.model, "test")
    assert 0 < abs(a.losses - b.losses).max() < 0.02
    assert read_json(tmp_path / "half" / "run.json")["precision"] == "bf16"
    with pytest.raises(ConflictError) as error:
        run_comparison(full, [parse_method("entropy", "heads")], tmp_path / "half", remove=[1.0], test=False)
    assert "bf16" in error.value.differences
