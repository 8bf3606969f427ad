"""How commands end: interrupted anywhere with what is kept, names shown and not sent, JSON that is JSON."""

import ast
import json
import logging
import shlex
from pathlib import Path

import pytest
import typer
from commands import ended, typed
from test_results import ROWS, write_run

import espalier.cli
from espalier import api
from espalier.cli import app, show
from espalier.core.call import CALL, spell
from espalier.core.terminal import log, visible
from espalier.experiment import verb as verbs
from espalier.experiment.next_steps import after_training
from espalier.reports.outcome import SPLITS, Outcome, before_and_after, history_table
from espalier.reports.tables import Table
from espalier.reports.text import measured_interval, number

VERBS = dict(typer.main.get_command(app).commands)
VERBS |= {f"check {name}": verb for name, verb in VERBS.pop("check").commands.items()}
HOSTILE = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e\udcff\r"


def interrupt(*args, **options):
    raise KeyboardInterrupt


# ------------------------------------------------------------------------------------------ Ctrl-C

WHERE = ["MODEL", "--task", "DATA"]
STAGES = {  # a command, and what it is doing when it is stopped
    "train reading": (["train", *WHERE], "espalier.experiment.trainer.open_task"),
    "train loading": (["train", *WHERE], "espalier.experiment.trainer.open_model"),
    "train saving": (["train", *WHERE, "--epochs", "1", "--examples", "8"], "espalier.training.loop.finish"),
    "score loading": (["score", *WHERE], "espalier.experiment.session.open_model"),
    "score scoring": (["score", *WHERE], "espalier.api.score_session"),
    "compare loading": (["compare", *WHERE], "espalier.experiment.session.open_model"),
    "compare reporting": (["compare", *WHERE], "espalier.api.make_report"),
    "prune loading": (["prune", *WHERE, "--remove", ".5"], "espalier.experiment.session.open_model"),
    "prune saving": (["prune", *WHERE, "--remove", ".5"], "espalier.experiment.prune_units.save"),
    "prune trimming": (
        ["prune", *WHERE, "--target", "vocabulary"],
        "espalier.experiment.prune_vocabulary.trim_vocabulary",
    ),
    "push": (["push", "MODEL", "me/small"], "huggingface_hub.get_token"),
    "recover loading": (["recover", *WHERE], "espalier.experiment.session.open_model"),
    "evaluate predicting": (["evaluate", *WHERE], "espalier.experiment.session.predict"),
    "measure timing": (["measure", "MODEL", "--max-length", "16"], "espalier.experiment.latency.time_models"),
    "tokens": (["tokens", "MODEL", "some words"], "espalier.experiment.exporter.load_any"),
    "cost": (["cost", "MODEL", "--max-length", "16"], "espalier.reports.costs.list_costs"),
    "reproduce": (
        ["reproduce", "all-attention", "--task", "DATA", "-o", "OUT"],
        "espalier.reproductions.all_attention.steps.train_model",
    ),
    "report reading": (["report", "RUN"], "espalier.reproductions.sources.read_run"),
    "report writing": (["report", "RUN", "-o", "OUT"], "espalier.reports.write_csv"),
    "run": (["run", "bert-financial-news"], "espalier.api.run_setup"),
    "watch": (["watch", "RUN"], "espalier.reports.server.open_server"),
    "export": (["export", "MODEL", "-o", "OUT"], "espalier.exporters.plain.load"),
    "encode": (["encode", "MODEL", "-o", "OUT"], "espalier.reports.encoding.encode_folder"),
    "decode": (["decode", "MODEL", "-o", "OUT"], "espalier.reports.encoding.decode_folder"),
    "clean": (["clean", "OUT"], "espalier.io.files.clean"),
    "look": (["look", "MODEL"], "espalier.reports.catalogue.outline"),
    "list": (["list", "tasks"], "espalier.tasks.descriptions"),
    "check architecture": (["check", "architecture", "bert"], "espalier.testing.outcome.check_architecture"),
    "check criterion": (["check", "criterion", "taylor"], "espalier.testing.outcome.check_criterion"),
    "check gradients": (["check", "gradients", *WHERE], "espalier.testing.outcome.open_session"),
}
KEPT = {"train saving": "OUT", "compare reporting": "rows are in OUT", "prune saving": "rows are in OUT-run"}


def test_every_verb_is_stopped_somewhere():
    assert {" ".join(words[: 1 + (words[0] == "check")]) for words, _ in STAGES.values()} == set(VERBS)


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_anywhere_says_what_is_kept(stage, place, tmp_path, capsys, monkeypatch):
    words, at = STAGES[stage]
    write_run(tmp_path / "RUN", ROWS)
    names = {
        "MODEL": place / "model",
        "DATA": place / "data.tsv",
        "OUT": tmp_path / "OUT",
        "RUN": tmp_path / "RUN",
    }
    words = [str(names.get(word, word)) for word in words]
    options = {p.name for p in VERBS[" ".join(STAGES[stage][0][: 1 + (words[0] == "check")])].params}
    quick = {"calibration": "8", "validation": "8", "test": "8", "max_length": "16"}
    for name, value in quick.items() if "task" in options else ():
        words += [f"--{name.replace('_', '-')}", value] if name in options else []
    if "folder" in options and "-o" not in words and words[0] not in ("report", "clean", "push"):
        words += ["-o", str(tmp_path / "OUT")]
    if words[0] == "compare":
        words += ["--methods", "magnitude", "--remove", "0.2"]
    monkeypatch.setattr(at, interrupt)
    message = ended(capsys, monkeypatch, *words, code=130)
    assert "espalier: stopped: " in message
    assert KEPT.get(stage, "Repeat it").replace("OUT", str(tmp_path / "OUT")) in message


def test_what_is_kept(tmp_path):
    assert "nothing" in verbs.describe_kept(None)
    assert "nothing" in verbs.describe_kept(tmp_path / "new")
    write_run(tmp_path / "run")
    assert f"{len(ROWS)} rows" in verbs.describe_kept(tmp_path / "run")
    write_run(tmp_path / "small-run")
    assert "small-run" in verbs.describe_kept(tmp_path / "small")


# ------------------------------------------------------------------------------------------ what is printed


def test_visible_text_is_the_same_and_hidden_text_is_shown():
    assert visible("Größe 漢字 − × ≡ 🌳\ttab\nline") == "Größe 漢字 − × ≡ 🌳\ttab\nline"
    assert visible("a\nb", lines=False) == "a\\u000ab"
    assert visible("\x1b[31m") == "\\u001b[31m"
    assert visible(HOSTILE).isprintable()
    visible(HOSTILE).encode("utf-8")


def test_everything_printed_passes_through_one_function():
    for path in Path(espalier.cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "print",
                "typer.echo",
                "sys.stdout.write",
            ):
                allowed = path.name == "show.py" or "__version__" in ast.unparse(node)
                assert allowed, f"{path.name}: {ast.unparse(node)}"


def test_names_are_shown_not_sent(monkeypatch, capsys):
    table = Table([{f"a{HOSTILE}": f"b{HOSTILE}"}], f"t{HOSTILE}", f"c{HOSTILE}")
    outcome = Outcome({"name": HOSTILE}, [table], [f"note {HOSTILE}"])
    for text in (repr(outcome), table.to_markdown(), table.to_html()):
        assert "\x1b" not in text
        assert "\x9b" not in text
    show.show(outcome)
    show.show(outcome, json=True)
    record = logging.LogRecord("espalier", logging.WARNING, "", 0, "from %s", (HOSTILE,), None)
    assert not {"\x1b", "\x9b", "\udcff"} & {*log.handlers[0].format(record)}
    printed = capsys.readouterr()
    assert not {"\x1b", "\x9b", "\u202e", "\udcff", "\x07"} & {*printed.out, *printed.err}
    with pytest.raises(SystemExit):
        show.fail(HOSTILE)
    assert "\x1b" not in capsys.readouterr().err


def test_wide_tables_are_split_into_parts_that_fit(monkeypatch):
    rows = [{"method": f"m{i}", **{f"column {k}": "x" * 20 for k in range(6)}} for i in range(2)]
    monkeypatch.setattr(show, "width", lambda: 80)
    parts = show.split_columns(rows)
    assert [next(iter(part[0])) for part in parts] == ["method"] * len(parts)
    assert [name for part in parts for name in list(part[0])[1:]] == list(rows[0])[1:]
    assert all(sum(len(cell) + 3 for cell in part[0].values()) <= 80 for part in parts)
    monkeypatch.setattr(show, "width", lambda: 160)
    assert show.split_columns(rows) == [rows]
    assert show.split_columns([]) == [[]]


def measured(metric, value, low, high, n=1000):
    splits = {split: {"metric": metric, metric: value, "low": low, "high": high, "n": n} for split in SPLITS}
    counts = {"heads": 144, "parameters": 109_483_778, "macs": 11_174_215_680, "tokens": 128}
    return {**splits, **counts, "sparsity": 0.25, "bytes": 437_935_112}


@pytest.mark.parametrize(
    ("metric", "value", "low", "high"),
    [("perplexity", 29951.5464, 29269.0523, 30649.9405), ("matthews", -0.0123, -0.0456, 0.0234)],
)
def test_before_and_after_stay_beside_each_other_in_80_columns(monkeypatch, capsys, metric, value, low, high):
    before = measured(metric, value, low, high)
    times = {"median": 1.2345678, "low": 1.2, "high": 1.3}
    latency = {
        "before": times,
        "after": times,
        "batch_size": 1,
        "max_length": 128,
        "threads": 1,
        "rounds": 21,
    }
    facts = {"before": before, "after": before | {"heads": 72, "macs": 10**9, "parameters": 10**8}}
    table = before_and_after(facts | {"speedup": 1.5, "latency": latency})
    monkeypatch.setattr(show, "width", lambda: 80)
    show.show(Outcome(facts, [table]))
    printed = capsys.readouterr().out
    assert "continued" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert any("before" in line and "after" in line for line in printed.splitlines())


def test_the_epochs_of_a_training_fit_80_columns(monkeypatch):
    row = {"epoch": 1, "loss": 0.69213, "seconds": 1234.5, "validation accuracy": 0.5, "validation f1": 0.65}
    row |= {"validation matthews": -0.06614, "validation loss": 0.69213}
    table = history_table({"epochs": [row], "steps": 2, "seconds": 7, "folder": "tuned", "examples": 64})
    monkeypatch.setattr(show, "width", lambda: 80)
    assert show.split_columns(table.rows) == [table.rows]
    assert len(table.rows[0]) == len(row)  # no two columns have one name


def test_measured_numbers_have_as_many_digits_as_count():
    assert [number(x) for x in (0.90078, 12.34567, 29951.5464, None)] == [
        "0.9008",
        "12.346",
        "29952",
        "undefined",
    ]
    found = {"metric": "perplexity", "perplexity": 99.98765, "low": 98.0, "high": 101.23456}
    assert measured_interval(found) == "99.988 [98.000, 101.235]"
    assert number(1e300) == "1e+300"


def test_json_holds_the_name_as_it_is(capsys):
    show.show(Outcome({"name": "é\x1b\x9b"}), json=True)
    assert json.loads(capsys.readouterr().out)["name"] == "é\x1b\x9b"


def test_a_hostile_run_is_reported(tmp_path, capsys):
    name = HOSTILE.replace("\udcff", "")
    rows = [{**row, "method": row["method"].replace("gnorm", f"gnorm:{name}")} for row in ROWS]
    run = write_run(tmp_path, rows, model=f"toy{name}", notes=[name], task=name)
    shown = typed("report", run, "--no-figures", "-o", tmp_path / "out")
    for text in (shown, (tmp_path / "out" / "tables" / "summary.md").read_text("utf-8")):
        assert "\x1b" not in text
        assert "\x9b" not in text


def test_json_is_alone_on_stdout(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "sys.argv", ["espalier", "report", str(write_run(tmp_path)), "--no-figures", "--json"]
    )
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with pytest.raises(SystemExit):
        espalier.cli.main()

    def refuse(constant):
        raise AssertionError(constant)

    assert json.loads(capsys.readouterr().out, parse_constant=refuse)["rows"]


@pytest.mark.parametrize("rank", ["0", "x", "", "-1"])
def test_the_rank_of_a_strange_environment(rank, monkeypatch):
    monkeypatch.setenv("RANK", rank)
    assert show.rank() == 0


# ------------------------------------------------------------------------------------------ verbs


def test_verbs_keep_their_signature_and_explain_what_the_system_refuses(monkeypatch):
    import inspect

    assert "tolerance" in inspect.signature(api.compare).parameters
    assert api.compare.__name__ == "compare"

    @verbs.verb
    def write(folder):
        raise OSError(30, "Read-only file system", "there")

    with pytest.raises(espalier.core.errors.FolderError) as error:
        write("x")
    assert error.value.path == Path("there")


def test_next_steps_are_calls_in_python_and_commands_on_the_command_line():
    given = {"task": "my file.csv", "label": "stars", "folder": Path("again"), "kind": None}
    python = ast.parse(spell("recover", Path("small"), **given), mode="eval").body
    assert [one.value for one in python.args] == ["small"]
    assert {one.arg: one.value.value for one in python.keywords} == {
        "task": "my file.csv",
        "label": "stars",
        "folder": "again",
    }
    assert spell("measure", "small", against=object()) == "espalier.measure('small', against=against)"
    token = CALL.set("espalier prune tuned")
    try:
        words = shlex.split(spell("recover", Path("small"), **given))
    finally:
        CALL.reset(token)
    known = ["espalier", "recover", "small", "--task", "my file.csv", "-o", "again"]
    known += ["--columns", "label=stars"]
    assert words == known


def test_next_steps_read_texts_of_the_same_length():
    token = CALL.set("espalier train")
    try:
        usual, longer = (
            shlex.split(after_training(Path("m"), "base", "demo", {"max_length": length})[0])
            for length in (128, 512)
        )
    finally:
        CALL.reset(token)
    assert "max_length=512" in after_training(Path("m"), "base", "demo", {"max_length": 512})[0]
    assert "--max-length" not in usual
    assert [longer[i + 1] for i, word in enumerate(longer) if word == "--max-length"] == ["512;", "512"]
