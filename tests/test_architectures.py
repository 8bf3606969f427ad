"""Layouts, tables and sites."""

import pytest
import torch

from espalier import Architecture, HeadSpec, NeuronSpec, register_architecture, sites
from espalier.architectures.site import channels, parse, roles
from espalier.architectures.table import architectures, formula, load_table, position_limit
from espalier.core.errors import (
    FolderError,
    FormatError,
    InvalidValueError,
    UnknownNameError,
    UnsupportedError,
)
from espalier.testing.tiny import tiny


def test_fused_weights_answer_like_separate_ones():
    """By hand, for each of the four ways in which q, k and v are fused."""
    site = sites(tiny("gpt2"), "heads")[0]  # stacked and transposed
    w = site.module("qkv").weight
    assert torch.equal(site.weight("q"), w[:, :48].T.reshape(6, 8, 48))
    assert torch.equal(site.weight("v"), w[:, 96:].T.reshape(6, 8, 48))
    site = sites(tiny("modernbert"), "heads")[0]  # stacked
    w = site.module("qkv").weight
    assert torch.equal(site.weight("k"), w[48:96].reshape(6, 8, 48))
    site = sites(tiny("gpt_neox"), "heads")[0]  # interleaved
    w = site.module("qkv").weight.reshape(6, 3, 8, 48)
    assert torch.equal(site.weight("q"), w[:, 0])
    assert torch.equal(site.weight("v"), w[:, 2])
    site = sites(tiny("phi3"), "heads")[0]  # one after the other, of different sizes
    w = site.module("qkv").weight  # 6 query heads, 3 key-value heads of 8
    assert torch.equal(site.weight("q"), w[:48].reshape(3, 16, 48))
    assert torch.equal(site.weight("k"), w[48:72].reshape(3, 8, 48))
    assert torch.equal(site.weight("v"), w[72:].reshape(3, 8, 48))


def test_the_notation():
    assert parse("m ([q k v] u d)") == ((("", ("m",)),), (("", ("[q k v]", "u", "d")),))
    assert roles("qkv", "(q: u g d + k: u d + v: u d) m") == ["q", "k", "v"]
    assert roles("up", "u m") == ["up"]
    assert channels("(u d) m", 6, (("d", 2),)).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert channels("([a b] u) m", 6, (), "b").tolist() == [[3], [4], [5]]
    assert channels("(u [a b] d) m", 8, (("d", 2),), "b").tolist() == [[2, 3], [6, 7]]
    assert channels("(q: u g d + k: u d) m", 12, (("g", 2), ("d", 2)), "k").tolist() == [
        [8, 9],
        [10, 11],
    ]
    assert channels("(u d) m", 0, (("d", 2),)).shape == (0, 2)
    with pytest.raises(UnsupportedError):
        channels("(u d) m", 7, (("d", 2),))
    assert formula("u*g*d", {"u": 2, "g": 3, "d": 4}) == 24
    assert formula("layers/groups", {"layers": 12, "groups": 3}) == 4
    assert formula("pad+1", {"pad": 3}) == 4


def test_sites_have_names_and_costs():
    found = sites(tiny("llama"), "heads")
    assert [s.name for s in found] == [f"layers.{i}/heads" for i in range(3)]
    site = found[0]  # 3 groups of 2 query heads of 8 in a width of 48, with biases
    assert (site.units, site.group, site.shape) == (3, 2, (3,))
    assert site.parameters_per_unit() == 16 * 49 + 2 * 8 * 49 + 16 * 48
    assert site.macs_per_unit(10) == 10 * (32 * 48 + 16 * 48) + 2 * 10 * 10 * 16
    assert repr(site) == "Site('layers.0/heads', units=3)"
    with pytest.raises(UnknownNameError) as error:
        site.weight("x")
    assert error.value.known == ["q", "k", "v", "write"]


def test_albert_counts_what_its_blocks_serve():
    model = tiny("albert", num_hidden_layers=12, num_hidden_groups=3)
    assert [s.uses for s in sites(model, "heads")] == [4, 4, 4]


def test_weights_know_their_input_axis():
    assert {s.input_axis for s in sites(tiny("gpt2"), "weights")} == {0}
    assert {s.input_axis for s in sites(tiny("bert"), "weights")} == {1}
    site = sites(tiny("bert"), "weights")[0]
    assert (site.name, site.shape) == ("encoder.layer.0/attention.self.query", (48, 48))


def test_targets_are_checked():
    with pytest.raises(UnknownNameError) as unknown:
        sites(tiny("bert"), "head")
    assert (unknown.value.parameter, unknown.value.nearest) == ("target", "heads")
    with pytest.raises(UnknownNameError) as unknown:
        sites(tiny("bert"), "weights", also=["norm"])
    assert (unknown.value.parameter, unknown.value.nearest) == ("also", "norms")
    with pytest.raises(InvalidValueError) as invalid:
        sites(tiny("bert"), "heads", also=["norms"])
    assert invalid.value.parameter == "also"
    with pytest.raises(UnsupportedError):
        sites(torch.nn.Linear(2, 2))


def test_a_renamed_module_is_noticed():
    model = tiny("bert")
    layer = model.encoder.layer[1]
    layer.feed = layer.output
    del layer.output
    with pytest.raises(UnsupportedError):
        sites(model)


TABLE = """
from espalier import Architecture
ARCHITECTURE = Architecture(models=("bert",), layers="encoder.layer", specs=())
"""


def test_a_table_from_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(TABLE)
    assert load_table(str(file)).models == ("bert",)
    file.write_text("ARCHITECTURE = 3")
    with pytest.raises(FormatError):
        load_table(str(file))
    file.write_text("1/0")
    with pytest.raises(FormatError):
        load_table(str(file))
    with pytest.raises(FolderError):
        load_table(str(tmp_path / "none.py"))


def test_a_wrong_table_does_not_pass_the_contract(monkeypatch):
    """Interleaved where it is stacked: shapes fit, numbers do not. The contract must see it."""
    from espalier.testing import architecture as contract

    wrong = Architecture(
        models=("gpt2",),
        layers="h",
        specs=(
            HeadSpec(
                at="attn",
                d="head_dim",
                qkv=(".c_attn", "m (u [q k v] d)"),
                out=(".c_proj", "(u d) m"),
                sync={"num_heads": "u", "split_size": "u*d"},
                tail="c_proj resid_dropout",
            ),
            NeuronSpec(up=("mlp.c_fc", "m u"), down=("mlp.c_proj", "u m")),
        ),
        tiny=architectures()["gpt2"].tiny,
    )
    monkeypatch.setitem(architectures(), "gpt2", wrong)
    with pytest.raises(AssertionError):
        contract.gated_is_cut("gpt2")


def test_a_registered_table_is_known(monkeypatch):
    model, table = tiny("bert"), architectures()["bert"]
    monkeypatch.delitem(architectures(), "bert")
    with pytest.raises(UnknownNameError) as error:
        sites(model)
    assert error.value.name == "bert"
    monkeypatch.setitem(architectures(), "bert", None)
    assert register_architecture(table) is architectures()["bert"]
    assert len(sites(model, "heads")) == 3


@pytest.mark.parametrize(
    "kind", ["bert", "roberta", "xlm-roberta", "camembert", "mpnet", "esm", "gpt2", "opt"]
)
def test_the_position_limit_is_that_of_the_position_table(kind):
    """So many tokens run, and one more does not, whatever the positions begin at."""
    config = {"esm": {"position_embedding_type": "absolute", "pad_token_id": 1}}.get(
        kind, {"pad_token_id": 1}
    )
    model = tiny(kind, max_position_embeddings=20, **config)
    limit = position_limit(model)
    given = {"input_ids": torch.full((1, limit), 5), "attention_mask": torch.ones(1, limit, dtype=torch.long)}
    model(**given)
    with pytest.raises((IndexError, RuntimeError)):
        model(**{name: torch.cat([value, value[:, :1]], 1) for name, value in given.items()})


def test_no_position_table_is_no_limit():
    model = tiny("t5")
    del model.config.max_position_embeddings
    assert position_limit(model) is None
    assert position_limit(tiny("clip")) == 64
