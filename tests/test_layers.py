"""Blocks and sublayers as units: chosen, cut, repaired, saved. The registry has a contract of its own."""

import copy
import subprocess
import sys

import pytest
import torch
import toys
from test_repair import batches_for, difference

import espalier
from espalier import Mask, Scores, cost, criteria, cut, load, plan_of, save, sites
from espalier.analysis.reader import read_run
from espalier.core.errors import InvalidValueError, UnsupportedError
from espalier.pruning.pairs import pair_sites
from espalier.pruning.repair import repair
from espalier.selection.scopes import remove_lowest
from espalier.testing.tiny import inputs, outputs, same, tiny

QUICK = dict(calibration=16, validation=40, test=40, max_length=32)


def removed(model, **units):
    """Return a copy without units: layers=[0] removes the first block."""
    small = copy.deepcopy(model)
    for target, numbers in units.items():
        cut(small, Mask.without(sites(small, target), {0: numbers}), report=False)
    return small


def test_a_model_without_blocks_is_an_ordinary_one(bert):
    small = removed(bert, layers=[0, 2])
    assert small.config.num_hidden_layers == len(small.bert.encoder.layer) == 1
    assert [site.name for site in sites(small)] == ["encoder.layer.1/heads", "encoder.layer.1/neurons"]
    assert [site.path for site in sites(small)] == ["encoder.layer.0"] * 2
    assert plan_of(small).keep["encoder.layer/layers"] == [1]
    assert cost(small).macs * 3 == cost(bert).macs
    # later cuts count on in the numbering of the unpruned model
    again = removed(small, heads=[2])
    assert plan_of(again).keep["encoder.layer.1/heads"] == [0, 1, 3, 4, 5]


def test_a_removed_sublayer_adds_nothing(bert):
    """Unlike one without units, which still adds its bias."""
    headless = cut(copy.deepcopy(bert), Mask.without(sites(bert, "heads"), {1: range(6)}), report=False)
    small = removed(bert, attention=[1])
    writer = small.bert.encoder.layer[1].attention.output.dense
    assert writer.bias is None
    assert plan_of(small).keep["encoder.layer.1/heads"] == []
    given = inputs(bert)
    assert any((a - b).abs().max() > 1e-4 for a, b in zip(outputs(headless, given), outputs(small, given)))
    with torch.no_grad():
        headless.bert.encoder.layer[1].attention.output.dense.bias.zero_()
    same(outputs(headless, given), outputs(small, given), "without its bias", exact=True)


def test_private_norms_go_and_shared_ones_stay():
    llama, gptj = tiny("llama"), tiny("gptj")
    assert not list(removed(llama, attention=[0]).layers[0].input_layernorm.parameters())
    assert list(removed(gptj, attention=[0]).h[0].ln_1.parameters())  # the network reads it too


def test_a_gone_block_takes_its_units_out_of_the_plan(bert):
    plan = plan_of(removed(bert, heads=[1], layers=[0]))
    assert not any(name.startswith("encoder.layer.0/") for name in plan.keep)
    full = espalier.Plan(
        {**plan.keep, "encoder.layer.0/heads": [0]}, {**plan.units, "encoder.layer.0/heads": 6}
    )
    small = cut(removed(bert, layers=[0]), full, report=False)  # what is gone already may be named again
    assert plan_of(small).keep["encoder.layer/layers"] == [1, 2]


def test_t5_hands_its_position_bias_on():
    t5 = tiny("t5")
    small = removed(t5, layers=[0])
    attention = small.encoder.block[0].layer[0].SelfAttention
    assert attention.has_relative_attention_bias
    want = t5.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    assert torch.equal(attention.relative_attention_bias.weight, want)
    assert (small.config.num_layers, small.config.num_decoder_layers) == (2, 3)


def test_local_and_global_layers_keep_their_kind():
    gemma = tiny("gemma2")
    kinds = list(gemma.config.layer_types)
    assert len(set(kinds)) == 2
    assert removed(gemma, layers=[0]).config.layer_types == kinds[1:]


@pytest.mark.parametrize("kind", ["albert", "esm"])
def test_blocks_that_cannot_go_say_why(kind):
    model = tiny(kind)
    with pytest.raises(UnsupportedError):
        removed(model, layers=[0])
    assert removed(model, attention=[0]).num_parameters() < model.num_parameters()


def test_the_folder_loads_without_espalier(bert, tmp_path):
    save(removed(bert, layers=[1], ffn=[0]), tmp_path / "small")
    code = (
        "import sys; sys.modules['espalier'] = None\n"
        "from transformers import AutoModelForSequenceClassification as A\n"
        f"m = A.from_pretrained({str(tmp_path / 'small')!r}, trust_remote_code=True)\n"
        "print(len(m.bert.encoder.layer), m.bert.encoder.layer[0].output.dense.bias)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["2", "None"]


# ------------------------------------------------------------------------------------------- scores


def test_a_gate_on_a_block_is_what_finite_differences_say(bert):
    bert = copy.deepcopy(bert).double()
    found, batch = sites(bert, "layers", "attention"), inputs(bert)
    batch["labels"] = torch.tensor([1, 0])
    got = criteria.load("taylor")(bert, found, [batch], signed=True)

    def loss(name, unit, value):
        from espalier.engine.gates import gated

        gates = {site.name: torch.ones(site.units, dtype=torch.float64) for site in found}
        gates[name][unit] = value
        with gated(found, gates), torch.no_grad():
            return float(bert(**batch).loss)

    for site in found:
        slope = (loss(site.name, 1, 1 + 1e-5) - loss(site.name, 1, 1 - 1e-5)) / 2e-5
        assert float(got[site.name][1]) == pytest.approx(-slope, rel=1e-4)


def test_a_block_that_changes_nothing_has_no_influence():
    llama = tiny("llama")
    with torch.no_grad():
        for path in ("self_attn.o_proj", "mlp.down_proj"):
            for p in llama.layers[1].get_submodule(path).parameters():
                p.zero_()
    scores = criteria.load("influence")(llama, sites(llama, "layers"), [inputs(llama)])["layers/layers"]
    assert float(scores[1]) == pytest.approx(0, abs=1e-6)
    assert scores.argmin() == 1


def test_sublayers_are_compared_with_each_other():
    scores = Scores({"a/attention": torch.tensor([1.0, 2.0]), "a/ffn": torch.tensor([3.0, 4.0])})
    mask = remove_lowest(scores, 0.5)
    assert not mask["a/attention"].any()
    assert mask["a/ffn"].all()


# ------------------------------------------------------------------------------------------- repair


@pytest.mark.parametrize("kind", ["bert", "llama", "gpt2", "gptj", "t5", "olmo2", "modernbert"])
@pytest.mark.parametrize("units", [{"layers": [1]}, {"layers": [0, 2]}, {"attention": [1], "ffn": [0]}])
def test_repair_follows_the_dense_model_over_gaps(kind, units):
    model = tiny(kind)
    data = batches_for(model)
    small = removed(model, **units)
    as_cut = difference(small, model, data)
    done = repair(small, model, data)
    assert all(one.after <= one.before for one in done)
    assert difference(small, model, data) <= as_cut


def test_who_follows_whom(bert):
    def names(small):
        return [(a.name[14:], b.name[14:]) for a, b in pair_sites(small, bert)]

    assert names(removed(bert, layers=[1])) == [("0/neurons", "1/neurons"), ("2/heads", "2/heads")]
    assert names(removed(bert, layers=[0])) == [("1/heads", "1/heads")]
    assert names(removed(bert, layers=[1, 2])) == [("0/neurons", "2/neurons")]
    assert names(removed(bert, ffn=[1])) == [("1/heads", "1/neurons"), ("2/heads", "2/heads")]
    assert names(removed(bert, attention=[1])) == [("1/neurons", "1/neurons")]
    assert pair_sites(bert, bert) == []


# --------------------------------------------------------------------------------------------- verbs


@pytest.fixture
def given(tmp_path):
    return str(toys.folder_with_model(tmp_path / "model")), str(toys.table_of(tmp_path / "data.tsv", n=240))


@pytest.mark.parametrize(("target", "left"), [("layers", 2), ("attention,ffn", 4)])
def test_prune_by_layers(given, tmp_path, target, left):
    small = espalier.prune(
        *given, target=target, remove=1 / 3, repair="refit", folder=tmp_path / "small", **QUICK
    )
    assert sum(one["kept"] for one in small["layers"]) == left
    assert small["repair"] == "refit"
    assert small["repaired"]
    again = load(tmp_path / "small")
    assert sum(site.units for site in sites(again, *target.split(","))) == left
    assert (
        espalier.evaluate(tmp_path / "small", given[1], **{k: QUICK[k] for k in ("test", "validation")})[
            "test"
        ]["accuracy"]
        == small["after"]["test"]["accuracy"]
    )


def test_heads_are_repaired_without_a_budget(given, tmp_path):
    """The order is measured as it is cut; what is reported is the repaired model."""
    plain, refit = (
        espalier.prune(*given, remove=0.5, repair=how, folder=tmp_path / str(how), **QUICK)
        for how in (None, "refit")
    )
    assert plain["repair"] == "none"
    assert plain["layers"] == refit["layers"]
    assert refit["repaired"]
    assert refit["after"]["test"]["loss"] != plain["after"]["test"]["loss"]


def test_compare_layers(given, tmp_path):
    how = dict(target="layers", folder=tmp_path / "run", figures=False, **QUICK)
    espalier.compare(*given, methods=["taylor", "influence"], **how)
    results = read_run(tmp_path / "run")
    for method in ("taylor", "influence"):
        assert results.curve(method).removed == pytest.approx([0, 1 / 3, 2 / 3, 1])


@pytest.mark.parametrize(
    "options",
    [
        {"target": "layers,heads", "remove": 0.5},
        {"target": "layers", "remove": 0.5, "method": "gnorm"},
        {"target": "ffn", "remove": 0.5, "method": "influence"},
        {"target": "weights", "remove": 0.5, "repair": "refit"},
        {"remove": 0.5, "epochs": 1, "repair": "refit"},
    ],
)
def test_what_layers_and_repairs_refuse(options):
    with pytest.raises(InvalidValueError):
        espalier.prune("nowhere", "nothing", **options)
