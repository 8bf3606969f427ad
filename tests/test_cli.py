"""The command line as a person meets it."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from espalier import cut, save, sites
from espalier.cli import app, main
from espalier.testing.architecture import tiny, uneven


def run(*words):
    return CliRunner().invoke(app, [str(w) for w in words], catch_exceptions=False)


def fails(*words, monkeypatch, capsys):
    """What main says when it does not work out."""
    monkeypatch.setattr(sys, "argv", ["espalier", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def test_look_at_a_type_a_config_and_a_cut_folder(tmp_path):
    assert "encoder.layer.11/neurons" in run("look", "bert").output
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2, "num_key_value_heads": 8}))
    got = json.loads(run("look", config, "--json", "--tokens", 16).output)
    assert (got["heads"], got["tokens"], len(got["sites"])) == (16, 16, 4)
    assert got["sites"][0]["query heads/unit"] == 4
    model = tiny("bert", "AutoModelForSequenceClassification")
    mask = uneven(sites(model), 0)
    save(cut(model, mask, report=False), tmp_path / "m")
    got = json.loads(run("look", tmp_path / "m", "--json").output)
    assert got["class"] == "BertForSequenceClassification"
    assert [s["units"] for s in got["sites"]] == [s.units for s in sites(model)]
    assert got["parameters"] == sum(p.numel() for p in model.parameters())


def test_look_says_what_cannot_be_cut():
    shown = run("look", "olmo2").output
    assert "cuttable" in shown
    got = json.loads(run("look", "olmo2", "--json").output)
    assert "q_norm" in got["sites"][0]["cuttable"]


def test_names_from_outside_are_shown_as_they_are(tmp_path):
    """A folder called [red] is a folder, not a colour."""
    folder = tmp_path / "[red]x[/red]"
    save(tiny("bert"), folder)
    assert "[red]x[/red]" in run("look", folder).output.replace("\n", "")


def test_lists():
    got = json.loads(run("list", "architectures", "--json").output)
    assert len(got) == 39
    assert "39 model types" in run("list", "architectures").output
    assert "taylor" in run("list", "criteria").output


def test_version_and_help():
    assert run("--version").output.startswith("espalier 0.")
    for words in ((), ("look",), ("list",), ("check", "architecture")):
        assert "Examples: espalier" in run(*words, "--help").output


def test_check_anatomy():
    result = run("check", "architecture", "distilbert", "--json")
    rows = json.loads(result.stdout)
    assert result.exit_code == 0
    assert {row["result"] for row in rows} == {"ok"}


WRONG = """
from espalier import Architecture, heads, neurons
ARCHITECTURE = Architecture(
    models=("starcoder2",),
    layers="layers",
    parts=(
        heads(at="self_attn", d="head_dim", g="num_key_value_groups",
              q=".k_proj", k=".q_proj", v=".v_proj", out=".o_proj"),
        neurons(up="mlp.c_fc", down="mlp.c_proj"),
    ),
    tiny={"starcoder2": {"num_key_value_heads": 3}},
)
"""


def test_check_a_wrong_table(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "espalier", "check", "architecture", file, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert any(row["result"] != "ok" for row in json.loads(done.stdout))
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["starcoder2", "granite", "stablelm", "biogpt"])
def test_a_guess_passes_the_contract(kind, tmp_path):
    """Architectures nobody wrote down: look --guess, save, check architecture."""
    guess = subprocess.run(
        [sys.executable, "-m", "espalier", "look", kind, "--guess"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "check architecture" in guess.stderr
    (tmp_path / "mine.py").write_text(guess.stdout)
    done = subprocess.run(
        [sys.executable, "-m", "espalier", "check", "architecture", tmp_path / "mine.py", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [r for r in json.loads(done.stdout) if r["result"] != "ok"] == []
    assert done.returncode == 0


def test_a_guess_says_what_it_did_not_find_out():
    got = json.loads(run("look", "falcon", "--guess", "--json").output)
    assert any("writes the heads of self_attention back" in line for line in got["unknown"])
    got = json.loads(run("look", "gpt_neox", "--guess", "--json").output)
    assert any("interleaved" in line for line in got["unknown"])
    assert "head_dim" not in got["table"].partition("tiny")[2]  # a property of its config, not a setting
    got = json.loads(run("look", "mamba", "--guess", "--json").output)
    assert "where the heads are" in got["unknown"]
    got = json.loads(run("look", "olmo2", "--guess", "--json").output)
    assert any("spans several heads" in line for line in got["unknown"])


@pytest.mark.parametrize("kind", ["bert", "llama", "opt", "distilbert", "vit", "gpt2", "bart"])
def test_a_guess_finds_what_the_table_says(kind):
    from espalier.architectures.infer import infer_table
    from espalier.architectures.registry import architectures

    namespace = {}
    exec(infer_table(tiny(kind)).source(), namespace)
    got, want = namespace["ARCHITECTURE"], architectures()[kind]
    for mine, theirs in zip(got.specs[:1], want.specs[:1]):
        assert mine.places == theirs.places
        assert mine.sizes == theirs.sizes
    up = [p.places["write"] for p in got.specs if p.target == "neurons"]
    assert up[0] in [p.places["write"] for p in want.specs if p.target == "neurons"]


def test_wrong_input_ends_in_a_sentence(tmp_path, monkeypatch, capsys):
    both = {"monkeypatch": monkeypatch, "capsys": capsys}
    assert "did you mean 'llama'?" in fails("check", "architecture", "lama", **both)
    assert "did you mean 'architectures'?" in fails("list", "architecture", **both)
    assert "no architecture for model_type 'mamba'" in fails("look", "mamba", **both)
    assert "no heads and no neurons" in fails("look", "mamba", "--guess", **both)
    assert "no model 'brt', did you mean 'bert'?" in fails("look", "brt", **both)
    assert "no model 'nobody/nothing'" in fails("look", "nobody/nothing", **both)
    assert "has no config.json" in fails("look", tmp_path, **both)
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    assert "bad.json" in fails("look", bad, **both)
    bad.write_text('{"a": 1}')
    assert "no model_type" in fails("look", bad, **both)
    bad.write_text('{"model_type": "bert", "hidden_size": "many"}')
    assert "bad.json" in fails("look", bad, **both)
    assert "no file" in fails("check", "architecture", tmp_path / "none.py", **both)


def test_a_surprise_ends_in_a_sentence_too(monkeypatch, capsys):
    import espalier.architectures.support

    def surprise():
        raise RuntimeError("something nobody thought of")

    monkeypatch.setattr(espalier.architectures.support, "rows", surprise)
    both = {"monkeypatch": monkeypatch, "capsys": capsys}
    assert "ESPALIER_DEBUG=1" in fails("list", "architectures", **both)
