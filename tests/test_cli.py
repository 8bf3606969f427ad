"""The command line: parsing, help, JSON, exit codes, and parameters of messages spelled as flags."""

import json
import subprocess
import sys

import pytest
import toys
import typer
from commands import data, ended, typed
from typer.testing import CliRunner

import espalier
import espalier.api
from espalier import cut, load, plan_of, save, sites
from espalier.architectures.infer import infer_table
from espalier.architectures.table import architectures
from espalier.cli import app
from espalier.cli import show as shown
from espalier.cli.show import in_flags
from espalier.core.errors import EspalierError
from espalier.reports.catalogue import look
from espalier.testing.architecture import uneven
from espalier.testing.tiny import tiny

QUICK = ["--validation", "40", "--test", "40", "--max-length", "32"]
VERBS = dict(typer.main.get_command(app).commands)
VERBS |= {f"check {name}": verb for name, verb in VERBS.pop("check").commands.items()}


@pytest.fixture(scope="module")
def where(place):
    return [place / "model", "--task", place / "data.tsv"]


# ------------------------------------------------------------------------------------------ help and options


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_examples_and_fits_a_narrow_screen(verb):
    shown = typed(*verb.split(), "--help", env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert f"espalier {verb}" in " ".join(shown.split())
    assert "…" not in shown
    above, _, below = shown.partition(" Examples:\n")
    assert max(map(len, above.splitlines())) <= 80
    examples = [line for line in below.splitlines() if line]  # whole ones, so that a line can be copied
    assert examples == [f"   {one}" for one in VERBS[verb].epilog.removeprefix("Examples: ").split(" · ")]
    assert all("espalier " in line and "·" not in line for line in examples)


@pytest.mark.parametrize("verb", ["compare", "prune"])
def test_few_options_with_the_important_ones_first(verb):
    every = ("json", "quiet", "dry_run")  # of every verb, or of every long one
    options = [p for p in VERBS[verb].params if p.param_type_name == "option" and p.name not in every]
    assert len(options) <= 24
    panels = [getattr(p, "rich_help_panel", None) for p in options]
    assert panels.count(None) <= 6  # the rest is in panels, below


def test_every_option_is_a_keyword_of_the_function_or_spread_over_some():
    import inspect

    from espalier.experiment.recover_model import RecoverOptions
    from espalier.experiment.session import SessionOptions

    spread = {"columns", "set_", "json", "quiet", "models", "source", "no_figures"}
    for verb in ("compare", "prune", "train", "score", "recover", "evaluate", "measure", "report", "export"):
        known = {*inspect.signature(getattr(espalier.api, verb)).parameters, *SessionOptions.__annotations__}
        known |= {"overwrite", "batch_size", "multiple", "dtype"} if verb == "prune" else set()
        known |= {*RecoverOptions.__annotations__} if verb == "recover" else set()
        assert {p.name for p in VERBS[verb].params} - spread <= known, verb


def test_version_and_first_help():
    assert typed("--version").startswith(f"espalier {espalier.__version__}")
    assert "\n   espalier train minilm --task demo\n" in typed("--help")


# ------------------------------------------------------------------------------------------ verbs


def test_compare_and_report(where, tmp_path):
    run = tmp_path / "run"
    words = ["compare", *where, "--methods", "gnorm,random:2:every=6", "--remove", "0.5", *QUICK]
    words += ["--calibration", "16", "-o", run, "--set", "figures=false", "--set", "all-scores=true"]
    shown = typed(*words)
    for text in ("gnorm", "random:2:every=6"):
        assert text in shown
    assert not (run / "figures").exists()
    assert '"scores"' in (run / "rows.jsonl").read_text()
    before = (run / "rows.jsonl").read_bytes()
    found = data(*words)  # finished: only read
    assert (run / "rows.jsonl").read_bytes() == before
    again = data("report", run, "--no-figures", "-o", tmp_path / "r", "--tolerance", "0.5")
    assert (found["tolerance"], again["tolerance"]) == (0.01, 0.5)
    assert found["rows"] == again["rows"]


def test_prune_encode_decode_measure_evaluate(where, tmp_path):
    small, sparse, task = tmp_path / "small", tmp_path / "sparse", [*where[1:], *QUICK]
    quick = ["--calibration", "16", *QUICK]
    found = data("prune", *where, "--method", "taylor", "--remove", "0.5", "-o", small, *quick)
    assert found["after"]["heads"] == 9
    assert sum(map(len, plan_of(load(small)).keep.values())) == 9
    weights = ["--target", "weights+embeddings", "--remove", "0.8", "--epochs", "1", "--set", "examples=16"]
    data("prune", *where, *weights, "--set", "lr=1e-3", "--set", "batch_size=8", "-o", sparse, *quick)
    plain = json.loads((sparse / "plan.json").read_text())["origin"]
    assert (plain["also"], plain["schedule"]) == (["embeddings"], "cubic")
    packed = data("encode", sparse, "-o", tmp_path / "packed")
    assert packed["after"] < packed["before"]
    data("decode", tmp_path / "packed", "-o", tmp_path / "plain")
    both = [data("evaluate", folder, *task)["test"] for folder in (tmp_path / "packed", tmp_path / "plain")]
    assert both[0] == both[1]
    assert "95 %" in typed("evaluate", small, *task)
    timed = data("measure", small, "--against", where[0], "--rounds", "1", "--max-length", "8")
    assert [one["model"] for one in timed["models"]] == ["small", "model"]
    out = data("recover", small, *task, "--examples", "16", "-o", tmp_path / "r", "--way", "distill",
               "--teacher", where[0], "--distillation", "temperature=3,soft_weight=0.9")  # fmt: skip
    assert out["way"] == "distill"
    settings = json.loads((tmp_path / "r" / "training.json").read_text())["settings"]
    assert (settings["temperature"], settings["soft_weight"]) == (3, 0.9)


def test_train_score_and_check(where, tmp_path):
    quick = ["--validation", "40", "--max-length", "32"]
    found = data("train", *where, "--epochs", "1", "--examples", "16", *quick, "-o", tmp_path / "t")
    assert found["examples"] == 16
    found = data("score", *where, "--method", "gnorm", "--calibration", "16")
    assert [len(v) for v in found["scores"].values()] == [6, 6, 6]
    assert "neurons" in typed("score", *where, "--method", "magnitude", "--target", "neurons")
    words = ["--calibration", "16", "--few", "4", "--sample", "3"]
    found = data("check", "gradients", *where, *words)
    assert {row["verdict"] for row in found["findings"]} <= {"ok", "warning"}
    found = data("check", "architecture", "distilbert")
    assert found["passed"]
    assert {row["result"] for row in found["checks"]} <= {"ok", "not applicable"}


def test_columns_and_set(where, place, tmp_path):
    text = (place / "data.tsv").read_text().replace("sentence\tlabel", "review\tstars")
    (tmp_path / "other.tsv").write_text(text)
    words = ["score", where[0], "--task", tmp_path / "other.tsv", "--columns", "text=review,label=stars"]
    found = data(*words, "--calibration", "8", "--set", "calibration_batch_size=4", "--set", "split-seed=3")
    assert found["n"] == 8
    for wrong in (
        ["--columns", "text"],
        ["--columns", "txt=review"],
        ["--set", "precision"],
        ["--set", "seed=3"],
        ["--set", "target=heads"],
        ["--set", "method=gnorm"],
    ):
        done = CliRunner().invoke(app, [*map(str, words[:4]), *wrong])
        assert done.exit_code == 2, wrong
        assert wrong[0] in done.output


def test_set_takes_lists(where, tmp_path):
    values = [1, 0.5, 0]
    words = ["prune", *where, "--target", "tokens", *QUICK, "--calibration", "8", "-o", tmp_path / "small"]
    found = data(*words, "--set", "values=[1,0.5, 0]")
    assert found["schedule"]["values"] == values
    wrong = CliRunner().invoke(app, [*map(str, words), "--set", "values=[1,zero,0]"])
    assert wrong.exception.parameter == "values"


def test_lists():
    for what in ("architectures", "criteria", "metrics", "tasks", "figures", "recipes"):
        (rows,) = data("list", what).values()
        assert len(rows) > 2
        name = next(iter(rows[0].values()))
        assert name in typed("list", what)


def test_names_from_outside_are_no_markup(tmp_path):
    save(tiny("bert"), tmp_path / "[red]x[/red]")
    assert "[red]x[/red]" in typed("look", tmp_path / "[red]x[/red]").replace("\n", "")


def test_ranks_above_zero_print_nothing(monkeypatch):
    assert typed("list", "tasks")
    monkeypatch.setenv("RANK", "1")
    assert not typed("list", "tasks")
    assert not typed("list", "tasks", "--json")


# ------------------------------------------------------------------------------------------ endings


def test_messages_spell_parameters_as_flags(where, tmp_path, capsys, monkeypatch):
    both = (capsys, monkeypatch)
    for words, flags in (
        (["compare"], ["--task", "--recipe"]),
        (["compare", "x", "--task", "y", "--remove", "2"], ["--remove"]),
        (["compare", "x", "--task", "y", "--schedule", "cubic"], ["--epochs", "--schedule"]),
        (["prune", "x", "--task", "y"], ["--remove", "--tolerance"]),
        (["recover", "x", "--task", "y", "--way", "distill"], ["--teacher"]),
        (["evaluate", "x", "--task", "y", "--of", "z"], ["--of"]),
    ):
        message = ended(*both, *words)
        assert message.startswith("espalier: ")
        assert "`" not in message
        assert all(flag in message for flag in flags), message


def test_parameters_of_nested_verbs(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["espalier", "check", "gradients", "x"])
    assert in_flags("`max_length` and `no_such`") == "--max-length and no_such"
    monkeypatch.setattr(sys, "argv", ["espalier", "evaluate", "x"])
    assert in_flags("`label`, `kind`") == "--columns label=NAME, --set kind"
    monkeypatch.setattr(sys, "argv", ["espalier", "prune", "x"])
    assert in_flags("`label`, `max_length=64`") == "--columns label=NAME, --max-length 64"
    assert in_flags('`kind="language"`, `overwrite=True`') == "--set kind=language, --overwrite"


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "MODEL", "--task", "DATA", "--methods", "gnrom"],
        ["compare", "MODEL", "--task", "data.xyz"],
        ["compare", "nowhere", "--task", "DATA"],
        ["compare", "--recipe", "bert-financial"],
        ["prune", "MODEL", "--task", "DATA", "--remove", ".5", "--method", "gnorm,taylor"],
        ["score", "MODEL", "--task", "DATA", "--columns", "text=sentense"],
        ["score", "MODEL", "--task", ""],
        ["score", "MODEL", "--task", "/dev/null"],
        ["score", "MODEL", "--task", "x" * 300],
        ["score", "MODEL", "--task", "MODEL/model.safetensors"],
        ["score", "x" * 300, "--task", "DATA"],
        ["evaluate", "x" * 300, "--task", "DATA"],
        ["look", "x" * 300],
        ["evaluate", "MODEL", "--task", "sst2"],
        ["report", "EMPTY"],
        ["list", "recipe"],
        ["look", "EMPTY"],
        ["look", "mamba"],
        ["look", "mamba", "--infer"],
        ["look", "brt"],
        ["check", "architecture", "lama"],
        ["check", "architecture", "none.py"],
        ["check", "criterion", "gnrom"],
        ["encode", "MODEL/model.safetensors", "-o", "MODEL/model.safetensors"],
        ["export", "EMPTY", "-o", "EMPTY"],
        ["measure", "EMPTY"],
    ],
)
def test_wrong_input_ends_with_code_1(words, place, tmp_path, capsys, monkeypatch):
    names = {"MODEL": place / "model", "DATA": place / "data.tsv", "EMPTY": tmp_path}
    for name, path in names.items():
        words = [word.replace(name, str(path)) for word in words]
    ended(capsys, monkeypatch, *words)
    assert not list(tmp_path.iterdir())


def test_no_number_is_printed_for_a_model_with_nan(tmp_path, capsys, monkeypatch):
    import torch

    model = tiny("bert", "AutoModelForSequenceClassification")
    with torch.no_grad():
        model.classifier.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path / "model")
    toys.tokenizer().save_pretrained(tmp_path / "model")
    path = toys.table_of(tmp_path / "data.tsv")
    message = ended(capsys, monkeypatch, "evaluate", tmp_path / "model", "--task", path, "--json")
    assert "classifier" in message


@pytest.mark.parametrize("content", ["{", '{"a": 1}', '{"model_type": "bert", "hidden_size": "many"}'])
def test_damaged_configs_are_named(content, tmp_path, capsys, monkeypatch):
    (tmp_path / "bad.json").write_text(content)
    assert "bad.json" in ended(capsys, monkeypatch, "look", tmp_path / "bad.json")


def test_an_unforeseen_error_ends_with_code_1(monkeypatch, capsys):
    from espalier.architectures import support

    def surprise():
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(support, "rows", surprise)
    message = ended(capsys, monkeypatch, "list", "architectures")
    assert "RuntimeError" in message
    assert "ESPALIER_DEBUG=1" in message
    monkeypatch.setenv("ESPALIER_DEBUG", "1")
    with pytest.raises(RuntimeError):
        app(["list", "architectures"])


@pytest.mark.parametrize("verb", ["compare", "prune", "train"])
def test_ctrl_c_ends_with_code_130_and_the_same_again_resumes(
    verb, where, capsys, monkeypatch, tmp_path, caplog
):
    more = {
        "compare": [*QUICK, "--calibration", "16", "--methods", "gnorm", "--set", "figures=false"],
        "prune": [*QUICK, "--calibration", "16", "--method", "gnorm:scope=layer", "--tolerance", "0.05"],
        "train": ["--epochs", "2", "--max-length", "32"],
    }
    words = [verb, *where, "-o", tmp_path / "out", *more[verb]]
    folder = tmp_path / ("out-run" if verb == "prune" else "out")
    usual, seen = shown._lines, []

    def lines():
        update = usual()

        def stop(now):
            seen.extend([now] if now.total else [])
            if len(seen) == 7:
                raise KeyboardInterrupt
            update(now)

        return stop

    monkeypatch.setattr(shown, "_lines", lines)
    message = ended(capsys, monkeypatch, *words, code=130)
    assert str(folder) in message
    assert ("step 6" if verb == "train" else "7 rows") in message
    monkeypatch.setattr(shown, "_lines", usual)
    caplog.clear()
    typed(*words)
    assert any(("6" if verb == "train" else "7 rows") in record.message for record in caplog.records)


# ------------------------------------------------------------------------------------------ look, check


def test_look_at_a_type_a_config_and_a_cut_folder(tmp_path):
    assert "encoder.layer.11/neurons" in typed("look", "bert")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2, "num_key_value_heads": 8}))
    found = data("look", config, "--tokens", 16)
    assert (found["heads"], found["tokens"], len(found["sites"])) == (16, 16, 4)
    assert found["sites"][0]["query heads/unit"] == 4
    model = tiny("bert", "AutoModelForSequenceClassification")
    save(cut(model, uneven(sites(model), 0), report=False), tmp_path / "m")
    found = look(str(tmp_path / "m")).facts
    assert found["class"] == "BertForSequenceClassification"
    assert [s["units"] for s in found["sites"]] == [s.units for s in sites(model)]
    assert found["parameters"] == sum(p.numel() for p in model.parameters())
    assert "q_norm" in look("olmo2")["sites"][0]["cuttable"]


WRONG = """
from espalier import Architecture, HeadSpec, NeuronSpec
ARCHITECTURE = Architecture(
    models=("starcoder2",),
    layers="layers",
    specs=(
        HeadSpec(at="self_attn", d="head_dim", g="num_key_value_groups",
                 q=".k_proj", k=".q_proj", v=".v_proj", out=".o_proj"),
        NeuronSpec(up="mlp.c_fc", down="mlp.c_proj"),
    ),
    tiny={"starcoder2": {"num_key_value_heads": 3}},
)
"""


def espalier_in_a_process(*words):
    command = [sys.executable, "-m", "espalier", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_check_a_wrong_table(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    done = espalier_in_a_process("check", "architecture", tmp_path / "wrong.py", "--json")
    assert done.returncode == 1, done.stderr
    assert any(row["result"] != "ok" for row in json.loads(done.stdout)["checks"])
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["starcoder2", "granite", "stablelm", "biogpt"])
def test_an_inferred_table_passes_the_contract(kind, tmp_path):
    """Architectures without a table: look --infer, save, check architecture."""
    (tmp_path / "mine.py").write_text(typed("look", kind, "--infer"))
    done = espalier_in_a_process("check", "architecture", tmp_path / "mine.py", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passed"]


def test_what_could_not_be_inferred_is_listed():
    def unknown(kind):
        return " ".join(look(kind, infer=True)["unknown"])

    assert "writes the heads of self_attention back" in unknown("falcon")
    assert "interleaved" in unknown("gpt_neox")
    assert "spans several heads" in unknown("olmo2")
    assert "head_dim" not in look("gpt_neox", infer=True)["table"].partition("tiny")[2]  # no setting
    with pytest.raises(EspalierError):
        look("mamba", infer=True)


@pytest.mark.parametrize("kind", ["bert", "llama", "opt", "distilbert", "vit", "gpt2", "bart"])
def test_an_inferred_table_is_the_written_one(kind):
    namespace = {}
    exec(infer_table(tiny(kind)).source(), namespace)
    found, want = namespace["ARCHITECTURE"], architectures()[kind]
    assert found.specs[0].places == want.specs[0].places
    assert found.specs[0].sizes == want.specs[0].sizes
    writers = [[s.places["write"] for s in t.specs if s.target == "neurons"] for t in (found, want)]
    assert writers[0][0] in writers[1]


def test_verbs_of_python_are_spelled_as_commands():
    assert in_flags("first espalier.train it, then espalier.load(folder)") == (
        "first espalier train it, then espalier.load(folder)"
    )
