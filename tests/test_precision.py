"""bf16 is close to fp32, is taken only where it is faster, and is written down."""

import pytest
import torch
import toys

from espalier import EspalierError
from espalier.engine import precision
from espalier.experiment import compare, parse
from espalier.io.json_file import read_json


@pytest.mark.parametrize(("ratio", "want"), [(0.1, "fp32"), (1.1, "fp32"), (2.0, "bf16")])
def test_auto_takes_what_is_faster_here(monkeypatch, ratio, want):
    monkeypatch.setattr(precision, "speed_up", lambda _: ratio)
    assert precision.resolved("auto") == want
    assert precision.resolved("fp32") == "fp32"
    assert precision.resolved("bf16") == "bf16"
    with pytest.raises(EspalierError, match="did you mean 'bf16'"):
        precision.resolved("bf1")


def test_the_ratio_is_measured():
    assert precision.speed_up.__wrapped__("cpu") > 0


def test_scores_and_answers_in_bf16_are_close(tmp_path):
    full, half = toys.toy_bench(), toys.toy_bench(precision="bf16")
    for bench, name in ((full, "full"), (half, "half")):
        compare(bench, parse("gnorm:static,taylor:static"), tmp_path / name, tested=False)
    kinds = []
    handle = half.model.classifier.register_forward_hook(lambda *x: kinds.append(x[2].dtype))
    half.evaluate(half.model, "validation")
    handle.remove()
    assert set(kinds) == {torch.bfloat16}
    a, b = full.evaluate(full.model, "test"), half.evaluate(half.model, "test")
    assert 0 < abs(a.losses - b.losses).max() < 0.02
    assert read_json(tmp_path / "half" / "run.json")["precision"] == "bf16"
    with pytest.raises(EspalierError, match=r"another precision \(bf16, now fp32\)"):
        compare(full, parse("entropy"), tmp_path / "half", tested=False)
