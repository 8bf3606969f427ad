"""Every option of every verb with values that nobody should type: an error with an exit code, no traceback.

The table is made from the commands themselves: a new option is covered by being there. Nothing is computed:
where a model would be run or trained, the command ends.
"""

import re
from typing import get_args, get_type_hints

import pytest
import toys
import typer
from test_results import ROWS, write_run

from espalier import api
from espalier.cli import app, main
from espalier.core.errors import EspalierError, InvalidValueError
from espalier.engine.precision import check_precision
from espalier.experiment import latency, session
from espalier.experiment.session import SessionOptions
from espalier.experiment.verb import Keywords, check_keywords

BUILT = typer.main.get_command(app)
VERBS = dict(BUILT.commands)
VERBS |= {f"check {name}": verb for name, verb in VERBS.pop("check").commands.items()}
TEXTS = [
    "",
    "x" * 300,
    "\x1b[31m\u202e",
    "\udcff",
    "٣",
    ":,=",
    "nan",
    "0:1:1e-9",
    "9" * 40,
    "/dev/null",
    "FILE/x",
]
NUMBERS = ["", "nan", "inf", "-1", "9" * 30, "٣", "0x10"]
NEVER = ["", "nan", "inf", "9" * 30]  # refused, whatever the number is for


class ReachedError(EspalierError):
    """All values were accepted, and the work would begin."""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    toys.folder_with_model(folder / "model")
    toys.table_of(folder / "data.tsv", n=60)
    write_run(folder / "run", ROWS)
    (folder / "FILE").write_text("a file")
    return folder


@pytest.fixture
def quick(monkeypatch, work, tmp_path):
    """Models are opened once; running one ends the command."""

    def stop(*args, **options):
        raise ReachedError("reached")

    def open_named(model, task, *, on_progress=None, target="heads", also=(), **options):
        """Read what is not the usual model or task: names and paths are checked where they are read."""
        session.check_options(options)
        check_precision(options.get("precision", "fp32"))
        found = toys.task() if task in usual else session.open_task(task, options, model)
        if model not in usual:
            session.open_model(model, found)
        raise ReachedError("reached")

    usual = {str(work / "model"), str(work / "data.tsv")}
    monkeypatch.setattr(api, "open_session", open_named)
    for module in ("pruner", "recover_model", "assessment", "exporter"):
        monkeypatch.setattr(f"espalier.experiment.{module}.open_session", open_named)
    monkeypatch.setattr(api, "train_model", lambda *a, **o: open_named(*a[:2], **a[3]))
    monkeypatch.setattr("espalier.testing.outcome.open_session", open_named, raising=False)
    monkeypatch.setattr(latency, "time_models", stop)
    monkeypatch.setattr("espalier.exporters.push.is_reachable", lambda: False)  # nothing leaves this machine
    monkeypatch.setattr(typer.main, "get_command", lambda app: BUILT)  # as it is, but built once
    monkeypatch.setenv("ESPALIER_DEBUG", "1")  # what is unforeseen is raised
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("a file")


def command(verb, work, out):
    """The words that a verb needs, by parameter."""
    places = {"model": work / "model", "task": work / "data.tsv", "folder": out, "sources": work / "run"}
    places |= {"models": work / "model", "source": work / "model", "what": "tasks"}
    places |= {
        "text": "some words",
        "recipe": work / "none.toml",
        "run": work / "no-run",
    }  # a run would be served until Ctrl-C
    if verb.startswith("check") and verb != "check gradients":
        places["name"] = "nothing-of-this-name"
    if verb == "push":
        places |= {"name": "me/small", "folder": work / "model"}
    if verb == "export":
        places["model"] = work / "model"
    needed = [p for p in VERBS[verb].params if p.required or p.name in ("model", "task", "folder")]
    return {p.name: [*([p.opts[0]] if p.opts[0].startswith("-") else []), places[p.name]] for p in needed}


def end_of(words, capsys, monkeypatch):
    """Return the exit code of a command and whether its work began."""
    monkeypatch.setattr("sys.argv", ["espalier", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capsys.readouterr()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", printed.out + printed.err)
    assert "Traceback" not in printed.err
    return end.value.code, "espalier: reached" in printed.err


def options():
    for verb, found in VERBS.items():
        for p in found.params:
            if not getattr(p, "is_flag", False) and p.name != "help":
                yield verb, p


def is_number(verb, parameter):
    function = VERBS[verb].callback
    hint = get_type_hints(getattr(function, "__wrapped__", function))[parameter.name]
    return bool({int, float} & {hint, *get_args(hint)})


@pytest.mark.parametrize(
    ("verb", "parameter"), list(options()), ids=[f"{verb}-{p.name}" for verb, p in options()]
)
def test_bad_values_of_options(verb, parameter, quick, work, tmp_path, capsys, monkeypatch):
    numeric = is_number(verb, parameter)
    for number, value in enumerate(NUMBERS if numeric else TEXTS):
        words = command(verb, work, tmp_path / f"out{number}")
        flag = [parameter.opts[0]] if parameter.opts[0].startswith("-") else []
        words[parameter.name] = (
            [f"{flag[0]}={value}"] if flag[:1] and flag[0].startswith("--") else [*flag, value]
        )
        arguments = [w for name, some in words.items() for w in some if not str(some[0]).startswith("-")]
        rest = [
            w for some in words.values() for w in some if str(some[0]).startswith("-") and some[0] != value
        ]
        dashed = [] if flag else ["--"]
        if not flag:
            rest, arguments = rest, [*dashed, *arguments]
        rest += ["--no-figures"] if verb == "report" else []
        code, reached = end_of([*verb.split(), *rest, *arguments], capsys, monkeypatch)
        assert code in (0, 1, 2), (value, code)
        if numeric and value in NEVER:
            assert not reached, value
            assert code, value


SET = sorted(
    {*Keywords.model_fields, *SessionOptions.__annotations__} - {"model", "task", "folder", "points"}
)


@pytest.mark.parametrize("name", SET)
def test_bad_values_of_keywords(name, quick, work, tmp_path, capsys, monkeypatch):
    where = ["prune", work / "model", "--task", work / "data.tsv", "-o", tmp_path / "out"]
    where += ["--target", "weights", "--remove", "0.5", "--epochs", "1"]
    for value in ("nan", "inf", "9" * 30, "x" * 300, "\x1b[31m"):
        code, reached = end_of([*where, "--set", f"{name}={value}"], capsys, monkeypatch)
        assert code in (1, 2), value
        if value in ("nan", "inf", "9" * 30) and name not in ("tokenizer",):
            assert not reached, (name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("l1", float("nan")), ("cache", float("inf")), ("text", ""), ("seed", -1), ("seed", 10**30)),
        *(
            ("seed", True),
            ("seed", 1.0),
            ("split_seed", "1"),
            ("epochs", -1),
            ("lr", 0),
            ("lr", float("nan")),
        ),
        *(("model", ""), ("model", "x" * 300), ("folder", "a\0b"), ("trust_remote_code", "no"), ("until", 2)),
        *(("trust", 1), ("max_length", 10**30), ("distillation", {"temperature": "hot"}), ("cache", "all")),
    ],
)
def test_keywords_are_checked_in_python_too(name, value):
    with pytest.raises(InvalidValueError) as error:
        check_keywords({name: value})
    assert error.value.parameter == name


def test_numbers_of_numpy_are_numbers():
    import numpy as np

    check_keywords({"seed": np.int64(3), "lr": np.float32(1e-3), "validation": None})
    with pytest.raises(InvalidValueError):
        check_keywords({"cache": np.float64("nan")})
