"""espalier prune --what weights without a training: SparseGPT repairs, and more than the blocks can go."""

import json
from copy import deepcopy

import pytest
import torch
import toys
from commands import refused, typed
from transformers import AutoModelForSequenceClassification
from typer.testing import CliRunner

from espalier import compensate, criteria, load, lowest, sites, zero
from espalier.cli import app
from espalier.cli.weights import at_once, regime_of
from espalier.testing.architecture import tiny
from espalier.training.held_mask import zeros_of

QUICK = ["--validate", "40", "--test", "40", "--length", "32", "--calibrate", "16"]
PLAIN = {"schedule": "one-shot", "initial": 1.0, "until": 0.75, "every": None}


def pruned(bench, folder, *, by, scope, keep):
    regime = regime_of(bench, by=by, scope=scope, keep=keep, straight=False, l1=0.0, **PLAIN)
    at_once(bench, regime, folder, {"by": by, "scope": scope, "keep": keep})
    return json.loads((folder / "plan.json").read_text())["origin"]


@pytest.mark.parametrize(
    ("scope", "options"), [("layer", {"keep": 0.3}), ("2:4", {"keep": 0.5, "n": 2, "m": 4})]
)
def test_sparsegpt_is_its_repair(tmp_path, scope, options):
    """The weights that `compensate` leaves, not those of before with some of them zero."""
    bench = toys.toy_bench(units="weights")
    dense, want = deepcopy(bench.model), deepcopy(bench.model)
    compensate(want, sites(want, "weights"), bench.calibration, damping=0.02, **options)
    by = "sparsegpt:damping=0.02"
    told = pruned(bench, tmp_path / "s", by=by, scope=scope, keep=options["keep"])
    assert told["repaired"] is True
    moved = 0
    every = (sites(model, "weights") for model in (load(tmp_path / "s"), want, dense))
    for got, other, old in zip(*every):
        assert torch.equal(got.linear.weight, other.linear.weight)
        living = got.linear.weight != 0
        moved += int((got.linear.weight != old.linear.weight)[living].sum())
    assert moved


def test_zeros_that_a_model_came_with_are_not_repaired_away(tmp_path):
    bench = toys.toy_bench(units="weights")
    zero(bench.model, lowest(criteria.load("magnitude")(bench.model, bench.sites), 0.6))
    start = zeros_of(bench.sites)
    pruned(bench, tmp_path / "s", by="sparsegpt", scope="layer", keep=0.3)
    after = zeros_of(bench.sites)
    assert not any((after[name] & ~start[name]).any() for name in start)


def test_a_scope_that_cannot_be_repaired_is_said(tmp_path, caplog):
    bench = toys.toy_bench(units="weights")
    scores = criteria.load("sparsegpt")(bench.model, bench.sites, bench.calibration)
    want = zero(deepcopy(bench.model), lowest(scores, 0.5)).state_dict()
    told = pruned(bench, tmp_path / "s", by="sparsegpt", scope="global", keep=0.5)
    assert told["repaired"] is False
    assert "nothing is repaired: for that, --scope layer" in caplog.text
    assert all(torch.equal(w, want[name]) for name, w in bench.model.state_dict().items())
    assert "repaired" not in pruned(bench, tmp_path / "m", by="magnitude", scope="layer", keep=0.4)


def test_prune_also_what_lies_outside_the_blocks(place, tmp_path):
    words = ["prune", place / "model", "--task", place / "data.tsv", "--what", "weights", *QUICK]
    words += ["--keep", "0.5", "--json"]
    for also in ("embeddings,head,norms", "head"):
        options = dict.fromkeys(also.split(","), True)
        typed(*words, "--also", also, "-o", tmp_path / "s")
        model, dense = (
            load(tmp_path / "s"),
            AutoModelForSequenceClassification.from_pretrained(place / "model"),
        )
        everything = sites(dense, "weights", **options)
        zero(dense, lowest(criteria.load("magnitude")(dense, everything), 0.5))
        want = dense.state_dict()
        assert all(torch.equal(w, want[name]) for name, w in model.state_dict().items())
        told = json.loads((tmp_path / "s" / "plan.json").read_text())["origin"]
        assert told["also"] == also.split(",")
        units = sum(site.units for site in everything)
        assert told["sparsity"]["weights"] == units
        assert told["sparsity"]["zero"] == pytest.approx(0.5, abs=1 / units)
    typed(*words, "-o", tmp_path / "s")
    assert "also" not in json.loads((tmp_path / "s" / "plan.json").read_text())["origin"]


@pytest.mark.parametrize("by", ["magnitude", "movement", "fisher"])
def test_prune_also_while_training(by, place, tmp_path):
    """Exactly so many of all that was named, and nothing beside it; recovered, they stay."""
    task = ["--task", place / "data.tsv", *QUICK[:-2], "--epochs", "1", "--examples", "48"]
    task += ["--batch", "8", "--rate", "1e-3", "--json"]
    words = ["prune", place / "model", *task, "--what", "weights", "--by", by, "--keep", "0.3"]
    typed(*words, "--calibrate", "16", "--also", "embeddings,norms", "-o", tmp_path / "s")
    model = load(tmp_path / "s")
    everything = sites(model, "weights", also=("embeddings", "norms"))
    units = sum(site.units for site in everything)
    start = zeros_of(everything)
    assert sum(int(m.sum()) for m in start.values()) == round(0.3 * units)
    assert any("embeddings" in name and not m.all() for name, m in start.items())
    assert (model.classifier.weight != 0).all()
    told = json.loads((tmp_path / "s" / "plan.json").read_text())["origin"]
    assert told["also"] == ["embeddings", "norms"]
    record = json.loads((tmp_path / "s" / "training.json").read_text())
    assert record["settings"]["also"] == ["embeddings", "norms"]
    assert told["sparsity"]["weights"] == units
    typed("recover", tmp_path / "s", *task, "-o", tmp_path / "r")
    again = load(tmp_path / "r")
    after = zeros_of(sites(again, "weights", also=("embeddings", "norms")))
    assert all(torch.equal(after[name], start[name]) for name in start)
    assert not torch.equal(again.classifier.weight, model.classifier.weight)


@pytest.fixture(scope="module")
def half(place, tmp_path_factory):
    """The model of the place, stored in 16 bits."""
    folder = tmp_path_factory.mktemp("half") / "model"
    model = AutoModelForSequenceClassification.from_pretrained(place / "model")
    model.half().save_pretrained(folder)
    toys.tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("by", ["magnitude", "sparsegpt"])
def test_a_model_stored_in_16_bits_stays_so(by, half, place, tmp_path):
    """What is measured after pruning is what the file holds, and that is not twice as large."""
    task = ["--task", place / "data.tsv", *QUICK, "--json"]
    words = ["prune", half, *task, "--what", "weights", "--by", by, "--keep", "0.5"]
    told = json.loads(typed(*words, "-o", tmp_path / "s"))
    size = (half / "model.safetensors").stat().st_size
    assert told["before"]["bytes"] == size
    assert told["after"]["bytes"] == pytest.approx(size, rel=0.02)
    assert {p.dtype for p in load(tmp_path / "s").parameters()} == {torch.float16}
    again = json.loads(typed("evaluate", tmp_path / "s", *task[:-3], "--json"))
    assert again["test"] == told["after"]["test"]
    typed("prune", half, *task, "--by", "magnitude", "--keep", "0.5", "-o", tmp_path / "h")
    assert {p.dtype for p in load(tmp_path / "h").parameters()} == {torch.float16}


def test_a_training_says_that_its_file_is_larger(half, place, tmp_path):
    task = ["--task", str(place / "data.tsv"), *QUICK, "--epochs", "1", "--examples", "16"]
    words = ["prune", str(half), *task, "--what", "weights", "--keep", "0.5"]
    done = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "s")])
    assert "came in float16 and is saved in float32" in " ".join(done.output.split())
    assert {p.dtype for p in load(tmp_path / "s").parameters()} == {torch.float32}


@pytest.mark.parametrize("verb", ["recover", "prune"])
def test_rows_pruned_whole_do_not_come_back(verb, place, tmp_path):
    """Tokens and positions that no example has score nothing, and their rows go: only the plan knows."""
    task = ["--task", place / "data.tsv", *QUICK[:-2], "--json"]
    prune = ["--what", "weights", "--calibrate", "4", "--scope", "layer", "--by", "fisher"]
    words = ["prune", place / "model", *task, *prune, "--keep", "0.5", "--also", "norms,embeddings"]
    told = json.loads(typed(*words, "-o", tmp_path / "s"))
    before = zeros_of(sites(load(tmp_path / "s"), "weights", also=("embeddings", "norms")))
    assert told["pruned"]["also"] == ["embeddings", "norms"]  # in their own order
    assert told["pruned"]["weights"] == sum(m.numel() for m in before.values())
    assert told["pruned"]["zero"] == pytest.approx(1 - before.kept)
    whole = [m for name, m in before.items() if "word_emb" in name and not m.any(1).all()]
    assert whole, "no row is zero, so this test shows nothing"
    train = ["--epochs", "1", "--examples", "64", "--batch", "8", "--rate", "1e-2"]
    more = train if verb == "recover" else [*train, *prune[:-2], "--keep", "0.4"]
    typed(verb, tmp_path / "s", *task, *more, "-o", tmp_path / "r")
    after = zeros_of(sites(load(tmp_path / "r"), "weights", also=("embeddings", "norms")))
    assert not any((after[name] & ~before[name]).any() for name in before)
    origin = json.loads((tmp_path / "r" / "plan.json").read_text())["origin"]
    assert origin["also"] == ["embeddings", "norms"]


def test_a_head_that_is_the_embedding_is_no_group_of_its_own(tmp_path, capsys, monkeypatch):
    (tmp_path / "text.txt").write_text("\n".join(toys.sentences(300)) + "\n")
    tiny("gpt2", "AutoModelForCausalLM").save_pretrained(tmp_path / "gpt2")
    toys.tokenizer().save_pretrained(tmp_path / "gpt2")
    words = ["prune", tmp_path / "gpt2", "--task", tmp_path / "text.txt", *QUICK]
    words += ["--what", "weights", "--keep", "0.5", "--also", "head", "-o", tmp_path / "x"]
    said = " ".join(refused(capsys, monkeypatch, *words).split())
    assert "has none of its own" in said
    assert "--also embeddings" in said


def test_what_cannot_be_pruned_also(place, tmp_path, capsys, monkeypatch):
    both = (capsys, monkeypatch)
    nothing = ["prune", tmp_path / "none", "--task", tmp_path / "none.tsv", "--keep", "0.5"]
    weights = [*nothing, "--what", "weights", "-o", tmp_path / "x"]
    assert "did you mean 'head'" in refused(*both, *weights, "--also", "heads")
    assert "--also is for single weights" in refused(*both, *nothing, "--also", "head")
    compare = ["compare", *nothing[1:4], "-o", tmp_path / "x", "--also", "head"]
    assert "--also is for single weights" in refused(*both, *compare)
    compare += ["--what", "weights", "--also", "embedding"]
    assert "did you mean 'embeddings'" in refused(*both, *compare)
    compare[-1] = "embeddings"
    for by in ("wanda", "sparsegpt"):
        for asked in ([*weights, "--also", "embeddings"], compare):
            said = " ".join(refused(*both, *asked, "--by", by).split())
            assert "multiply nothing: leave --also embeddings out" in said
    assert "none.tsv" in refused(*both, *compare)  # of the usual criteria those that can
    assert not (tmp_path / "x").exists()
