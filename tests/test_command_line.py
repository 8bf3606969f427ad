"""The command line as a whole: the same manners for every verb."""

import json

import pytest
import transformers
import typer
from commands import data, ended, typed
from typer.testing import CliRunner

import espalier
from espalier.analysis.reader import read_run
from espalier.cli import app, main
from espalier.cli.app import QUIET
from espalier.core.errors import FormatError
from espalier.experiment import estimate
from espalier.reproductions.setup import parse_changes, read_setup
from espalier.training.data import TrainingData

VERBS = dict(typer.main.get_command(app).commands)
VERBS |= {f"check {name}": verb for name, verb in VERBS.pop("check").commands.items()}
QUICK = ["--validation", "40", "--test", "40", "--max-length", "32"]


@pytest.fixture(scope="module")
def where(place):
    return [place / "model", "--task", place / "data.tsv"]


@pytest.mark.parametrize("verb", VERBS)
def test_five_options_first_and_the_rest_in_panels(verb):
    options = [p for p in VERBS[verb].params if p.param_type_name == "option"]
    first = [p.name for p in options if getattr(p, "rich_help_panel", None) is None]
    assert len(first) <= 6, first
    names = {p.name for p in options}
    assert "quiet" in names
    assert "json" in names or verb in ("watch", "export")


@pytest.mark.parametrize(
    ("words", "meant"),
    [(["comapre"], "compare"), (["pruen"], "prune"), (["compare", "x", "--taks", "y"], "--task")],
)
def test_a_slip_of_the_fingers_is_bad_usage_and_names_what_was_meant(words, meant):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert meant in done.output


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list", "nothing"], 2),  # a name that is in no registry
        (["compare", "MODEL", "--task", "DATA", "--remove", "1.5"], 2),  # a value that no fraction has
        (["compare", "MODEL", "--task", "DATA", "--methods", "gnrom"], 2),
        (["compare", "MODEL", "--task", "DATA", "--set", "nothing=1"], 2),
        (["compare", "MODEL", "--task", "DATA", "--remove"], 2),  # refused by the parser
        (["report", "nothing-of-this-name"], 1),  # a folder that is not there
        (["evaluate", "nothing-of-this-name", "--task", "DATA"], 1),
    ],
)
def test_exit_codes_tell_mistyped_options_from_failed_work(words, code, place, capsys, monkeypatch):
    given = {"MODEL": place / "model", "DATA": place / "data.tsv"}
    ended(capsys, monkeypatch, *(given.get(word, word) for word in words), code=code)


def test_verbs_are_listed_in_the_order_of_the_work():
    command = typer.main.get_command(app)
    listed = command.list_commands(None)
    assert listed.index("train") < listed.index("compare") < listed.index("prune") < listed.index("clean")
    assert set(listed) == set(command.commands)


def test_completion():
    words = {"_ESPALIER_COMPLETE": "complete_bash", "COMP_WORDS": "espalier comp", "COMP_CWORD": "1"}
    done = CliRunner().invoke(app, [], env=words, prog_name="espalier")
    assert done.output.split() == ["compare"]


def test_json_is_all_there_is_on_stdout(where, tmp_path, capfd, monkeypatch):
    """Also of a verb that saves a model, over which transformers draws a bar."""
    transformers.logging.enable_progress_bar()
    words = ["train", *where, "--epochs", "1", "--examples", "16", "--max-length", "32", "--json", "-q"]
    monkeypatch.setattr("sys.argv", ["espalier", *map(str, words), "-o", str(tmp_path / "t")])
    with pytest.raises(SystemExit) as end:
        main()
    printed = capfd.readouterr()
    assert not end.value.code
    assert json.loads(printed.out)["examples"] == 16
    assert printed.err == ""


def test_quiet_prints_results_only(where, tmp_path, caplog):
    words = ["score", *where, "--calibration", "8"]
    loud, quiet = (CliRunner().invoke(app, [str(w) for w in [*words, *more]]) for more in ([], ["--quiet"]))
    assert quiet.stdout == loud.stdout
    assert quiet.stderr == ""
    assert QUIET.get() is False
    (tmp_path / "x").mkdir()
    assert "removed" in CliRunner().invoke(app, ["clean", str(tmp_path / "x")]).stderr
    assert CliRunner().invoke(app, ["clean", str(tmp_path / "x"), "-q"]).stderr == ""
    assert data("clean", tmp_path / "x") == {"removed": []}


# ------------------------------------------------------------------------------------------ dry runs


def test_a_dry_comparison_counts_rows_and_writes_nothing(where, tmp_path):
    run = tmp_path / "run"
    words = ["compare", *where, "--methods", "gnorm,random:2:every=6", *QUICK, "--calibration", "8"]
    words += ["-o", run, "--set", "figures=false"]
    found = data(*words, "--dry-run")
    assert not run.exists()
    assert [(one["rows"], one["scorings"]) for one in found["methods"]] == [(19, 18), (8, 2)]
    assert (found["rows"], found["rows there"], found["dry_run"]) == (29, 0, True)
    assert found["seconds"] > found["pass"] > 0
    typed(*words)
    again = data(*words, "--dry-run")
    # a method that loses nothing, or everything, has no point to test
    assert 2 + 18 + 6 <= again["rows there"] <= again["rows"]


def test_a_dry_pruning_counts_stages_typed_or_as_a_recipe(where, tmp_path):
    words = ["prune", *where, "--macs", "0.5", *QUICK, "--calibration", "8", "-o", tmp_path / "small"]
    found = data(*words, "--dry-run")
    path = tmp_path / "mine.toml"
    settings = {"verb": "prune", "model": str(where[0]), "task": str(where[2])}
    numbers = {"macs": 0.5, "calibration": 8, "validation": 40, "test": 40, "max_length": 32}
    path.write_text(
        "\n".join(f"{name} = {json.dumps(value)}" for name, value in (settings | numbers).items())
    )
    again = data("run", path, "--dry-run")
    assert found["stages"] == again["stages"] > 1
    assert found["budgets"] == again["budgets"]
    assert "scoring" in typed(*words, "--dry-run")
    assert not (tmp_path / "small").exists()


def test_a_dry_training_counts_steps(where, tmp_path):
    words = ["train", *where, "--epochs", "2", "--examples", "40", "--batch-size", "16", "--max-length", "32"]
    found = data(*words, "--dry-run", "-o", tmp_path / "t")
    assert (found["steps"], found["examples"]) == (6, 40)
    assert found["seconds"] == pytest.approx(6 * found["step"])
    assert not (tmp_path / "t").exists()


# ------------------------------------------------------------------------------------------ recipes


RECIPE = """
about = "a small one"
verb = "compare"
model = "MODEL"
task = "DATA"
methods = ["magnitude"]
remove = 0.5
calibration = 8
validation = 40
test = 40
max_length = 32
figures = false
timed = true
"""


def test_a_recipe_runs_and_typed_settings_win(where, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE.replace("MODEL", str(where[0])).replace("DATA", str(where[2])))
    assert data("run", path, "--dry-run", "remove=0.25")["rows"] == 2 + 4 + 1
    found = data("run", path, f"folder={tmp_path / 'run'}", "remove=0.25", "every=2")
    assert max(row["removed units"] for row in found["rows"]) == 4
    costs = read_run(tmp_path / "run").costs["magnitude", "one-shot"]
    assert all(cost.latency > 0 for cost in costs.values())  # as the recipe asks


def test_all_mistakes_of_a_recipe_at_once(tmp_path, capsys, monkeypatch):
    path = tmp_path / "wrong.toml"
    path.write_text('verb = "train"\nmodel = "x"\nepoch = 3\nlr = -1\nseed = "a"\n')
    message = ended(capsys, monkeypatch, "run", path)
    for part in ("4 mistakes", "epoch", "'epochs'", "task is missing", "lr", "seed"):
        assert part in message
    for text in ('verb = "comapre"', "model = 1", "verb = ", ""):
        path.write_text(text)
        with pytest.raises(FormatError):
            read_setup(path, {}, {"compare": lambda model: None})
    with pytest.raises(FormatError):
        parse_changes(["remove"])


def test_a_published_comparison_is_a_recipe_of_compare(tmp_path):
    verbs = {"compare": lambda model=None, recipe=None: None}
    assert read_setup("bert-financial-news:faithful", {}, verbs) == (
        "compare",
        {"recipe": "bert-financial-news:faithful"},
    )
    path = tmp_path / "mine.toml"
    path.write_text("[honest]\n")
    assert read_setup(path, {"model": "x"}, verbs) == ("compare", {"recipe": str(path), "model": "x"})


def test_a_file_alone_runs_no_python(tmp_path):
    for line in ('method = "./mine.py"', "trust_remote_code = true", "trust = true"):
        (tmp_path / "x.toml").write_text(f'verb = "prune"\nmodel = "m"\ntask = "t"\nremove = 0.5\n{line}\n')
        with pytest.raises(FormatError):
            espalier.run(tmp_path / "x.toml")


def test_the_time_of_a_training_is_that_of_short_and_long_batches(monkeypatch):
    """Batches hold texts of similar lengths; a clock that counts tokens shows which are timed."""
    seen = []
    data = TrainingData(
        [{"input_ids": [0] * n} for n in (5, 5, 90, 90, 20, 20, 5, 5, 20, 20, 90, 90)], None, None
    )
    monkeypatch.setattr(TrainingData, "batch", lambda self, numbers: seen.append(numbers) or {})

    class Clock:
        device = "cpu"
        loss = property(lambda self: self)

        def __call__(self):
            return self

        def backward(self):
            pass

        def zero_grad(self, **_):
            pass

    monkeypatch.setattr(estimate, "_clock", lambda work: float(len(data.rows[seen[-1][0]]["input_ids"])))
    steps, each = estimate.time_steps(Clock(), data, 2, 0)
    assert steps == 6
    assert each == pytest.approx((5 + 20 + 90) / 3)  # the mean of all six batches
    for n in (1, 2, 3, 7, 16):
        assert sorted(estimate.spread(range(n))) == list(range(n))
    assert estimate.spread(range(8))[:3] == [4, 2, 6]
