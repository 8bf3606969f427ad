"""Plans, rows and folders that version 0.1.0 wrote still load; `benchmarks/compatibility.py` made them."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

import espalier
from espalier import EspalierError, Plan
from espalier.analysis.reader import read_run

OLD = Path(__file__).parent / "data/v0.1.0"
EXPECTED = {"first": json.loads((OLD / "first.json").read_text())["logits"]}
EXPECTED |= json.loads((OLD / "expected.json").read_text())
GIVEN = torch.arange(24).reshape(2, 12)


def logits(model):
    return model.eval()(GIVEN).logits


@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_folder_computes_what_it_computed(name):
    torch.testing.assert_close(
        logits(espalier.load(OLD / name)), torch.tensor(EXPECTED[name]), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("name", EXPECTED)
def test_from_pretrained_reads_an_old_folder_too(name):
    model = AutoModelForSequenceClassification.from_pretrained(OLD / name)
    torch.testing.assert_close(logits(model), torch.tensor(EXPECTED[name]), rtol=0, atol=1e-6)


def test_old_plans_are_read():
    plan = Plan.load(OLD / "plan.json")
    assert (plan.keep, plan.units, plan.origin) == ({"0/heads": [0, 1, 2, 7]}, {"0/heads": 8}, {"by": "hand"})
    assert Plan.load(OLD / "first/plan.json").keep == json.loads((OLD / "first.json").read_text())["keep"]


def test_a_cut_of_an_old_cut_is_in_the_numbering_of_the_unpruned_model(tmp_path):
    model = espalier.load(OLD / "first")
    before = espalier.plan_of(model)
    mask = {s.name: torch.arange(s.units) > 0 for s in espalier.sites(model) if s.units > 1}
    espalier.cut(model, espalier.Mask(mask))
    after = espalier.plan_of(model)
    assert all(after.keep[name] == before.keep[name][1:] for name in mask)
    assert after.units == before.units
    espalier.save(model, tmp_path / "again")
    assert torch.equal(logits(espalier.load(tmp_path / "again")), logits(model))


def test_old_runs_are_read():
    heads, weights = read_run(OLD / "heads"), read_run(OLD / "weights")
    assert (heads.target, heads.units, heads.layers) == ("heads", 8, (4, 4))
    assert {label for label, _ in heads.curves} == {"base", "gnorm", "random:2"}
    assert sorted(heads.orders["gnorm"]) == [(i, j) for i in range(2) for j in range(4)]
    assert (weights.target, weights.layers) == ("weights", ())
    levels = {key[0]: curve.removed for key, curve in weights.curves.items()}
    assert levels["magnitude"] == (0.0, 0.5, 0.9)


def test_an_old_run_is_not_added_to(tmp_path):
    import toys

    run = shutil.copytree(OLD / "heads", tmp_path / "heads")
    before = (run / "rows.jsonl").read_bytes(), (run / "run.json").read_bytes()
    toys.table_of(tmp_path / "data.tsv", n=60)
    sizes = dict(calibration=8, validation=8, test=8, max_length=16)
    with pytest.raises(EspalierError):
        espalier.compare(OLD / "trained", tmp_path / "data.tsv", "gnorm", folder=run, **sizes)
    assert before == ((run / "rows.jsonl").read_bytes(), (run / "run.json").read_bytes())


def test_the_order_of_an_old_run_prunes_as_it_did(tmp_path):
    import toys

    toys.table_of(tmp_path / "data.tsv", n=60)
    sizes = dict(calibration=8, validation=8, test=8, max_length=16)
    small = espalier.prune(
        OLD / "trained", tmp_path / "data.tsv", "gnorm", remove=0.5, run=OLD / "heads", **sizes
    )
    assert espalier.plan_of(small.model).keep == Plan.load(OLD / "pruned/plan.json").keep
    assert torch.equal(logits(small.model), logits(espalier.load(OLD / "pruned")))
