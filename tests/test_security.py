"""Hostile folders: no verb runs anything of them, writes outside, or copies from outside."""

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import toys
from typer.testing import CliRunner

import espalier
from espalier import EspalierError
from espalier.cli import app
from espalier.testing.tiny import uneven

SECRET = "the secret of another folder"
ESCAPES = "\x1b[31m<img src=x onerror=alert(1)>"
SMALL = ("--calibration", "4", "--validation", "8", "--test", "8")
TRAIN = ("--epochs", "1", "--examples", "8")
VERBS = {
    "look": ("look", "{model}"),
    "score": ("score", "{model}", "--task", "{task}", "--method", "magnitude", *SMALL[:2]),
    "evaluate": ("evaluate", "{model}", "--task", "{task}", *SMALL[2:]),
    "measure": ("measure", "{model}", "--rounds", "1", "--max-length", "8"),
    "train": ("train", "{model}", "--task", "{task}", "-o", "{out}", *TRAIN, *SMALL[2:]),
    "recover": ("recover", "{model}", "--task", "{task}", "-o", "{out}", *TRAIN, *SMALL[2:]),
    "prune": (
        *("prune", "{model}", "--task", "{task}", "--method", "magnitude"),
        *("--remove", "0.5", "-o", "{out}", *SMALL),
    ),
    "compare": (
        *("compare", "{model}", "--task", "{task}", "--methods", "magnitude:every=9"),
        *("-o", "{out}", *SMALL),
    ),
    "export": ("export", "{model}", "-o", "{out}"),
    "encode": ("encode", "{model}", "-o", "{out}"),
    "decode": ("decode", "{model}", "-o", "{out}"),
    "report": ("report", "{model}", "-o", "{out}", "--no-figures"),
}


class Bomb:
    """Whoever unpickles it leaves a file."""

    def __init__(self, sign):
        self.sign = sign

    def __reduce__(self):
        return Path.touch, (self.sign,)


def evil(sign):
    return f"from pathlib import Path\nPath({str(sign)!r}).touch()\nclass Evil: pass\n"


def with_pickles(model, sign):
    """Weights only as pickles, in every name that is known for them."""
    for file in model.glob("*.safetensors"):
        file.unlink()
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "model.pkl", "pytorch_model.pt"):
        (model / name).write_bytes(pickle.dumps(Bomb(sign)))


def with_code(model, sign):
    """Code of its own, named in the config and in that of the tokenizer."""
    for name in ("config.json", "tokenizer_config.json"):
        raw = json.loads((model / name).read_text())
        kinds = ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification", "AutoTokenizer")
        raw["auto_map"] = dict.fromkeys(kinds, "evil.Evil") | {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
        raw["tokenizer_class"] = raw["model_type"] = "evil"
        (model / name).write_text(json.dumps(raw))
    for name in ("evil.py", "modeling_espalier.py", "conftest.py", "sitecustomize.py", "__init__.py"):
        (model / name).write_text(evil(sign))


def with_known_type(model, sign):
    """Code of its own beside a type that transformers knows."""
    with_code(model, sign)
    for name, entries in {"config.json": {"model_type": "bert"}, "tokenizer_config.json": {}}.items():
        raw = json.loads((model / name).read_text())
        raw.pop("tokenizer_class", None)
        (model / name).write_text(json.dumps({**raw, **entries}))


def with_links(model, sign):
    """Links to files and folders outside, some of them where a verb might write."""
    outside = sign.parent / "outside"
    (model / "README.md").symlink_to(outside / "secret.txt")
    (model / "vocab.txt").symlink_to(outside / "secret.txt")
    (model / "more").symlink_to(outside, target_is_directory=True)
    (model / ".espalier-training").symlink_to(outside, target_is_directory=True)


def with_shards(model, sign):
    """An index whose shards are outside, where there are weights indeed."""
    shutil.move(model / "model.safetensors", sign.parent / "outside/model.safetensors")
    names = ("bert.pooler.dense.weight", "classifier.weight")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "../outside/model.safetensors")}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def with_names(model, sign):
    """Markup, terminal escapes and paths where names are expected."""
    raw = json.loads((model / "config.json").read_text())
    raw |= {"id2label": {"0": ESCAPES, "1": "../../x"}, "label2id": {ESCAPES: 0, "../../x": 1}}
    raw["_name_or_path"] = f"../../{ESCAPES}"
    (model / "config.json").write_text(json.dumps(raw))


POISONS = (with_pickles, with_code, with_known_type, with_links, with_shards, with_names)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    toys.folder_with_model(folder / "model")
    toys.table_of(folder / "data.tsv", n=60)
    return folder


def content(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("poison", POISONS, ids=lambda poison: poison.__name__)
def test_no_verb_runs_or_leaves_a_poisoned_folder(clean, tmp_path, poison, monkeypatch):
    sign, outside = tmp_path / "sign", tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    model = shutil.copytree(clean / "model", tmp_path / "model")
    poison(model, sign)
    monkeypatch.chdir(tmp_path)
    beside, before = content(outside), content(model)
    ends = {}
    for verb, words in VERBS.items():
        out = tmp_path / f"out-{verb}"
        given = [w.format(model=model, task=clean / "data.tsv", out=out) for w in words]
        done = CliRunner().invoke(app, given)
        assert done.exception is None or isinstance(done.exception, (EspalierError, SystemExit)), (
            verb,
            repr(done.exception),
        )
        ends[verb] = str(done.exception or "")
        assert not sign.exists(), f"{verb} ran code of the folder"
        assert content(outside) == beside, f"{verb} wrote outside"
        assert content(model) == before, f"{verb} changed the folder"
        assert "\x1b[31m" not in done.output, f"{verb} sent an escape to the terminal"
        copied = (
            [name for name, data in content(out).items() if SECRET.encode() in data] if out.exists() else []
        )
        assert not copied, f"{verb} copied what links point at: {copied}"
    known = {"model", "outside", "out-prune-run", *(f"out-{verb}" for verb in VERBS)}
    assert {p.name for p in tmp_path.iterdir()} <= known
    if poison is with_names:  # the model itself is sound
        assert not any(ends[verb] for verb in ("look", "score", "evaluate", "measure", "train", "prune")), (
            ends
        )
    if poison in (with_pickles, with_shards):
        assert all(ends[verb] for verb in VERBS if verb != "look"), ends


def test_code_of_a_folder_is_not_run_by_load_either(clean, tmp_path):
    sign = tmp_path / "sign"
    espalier.save(model := cut_model(), tmp_path / "cut", tokenizer=toys.tokenizer())
    (tmp_path / "cut/modeling_espalier.py").write_text(evil(sign))
    loaded = espalier.load(tmp_path / "cut")
    assert not sign.exists()
    assert type(loaded) is type(model)


def cut_model():
    from espalier.testing.tiny import tiny

    model = tiny("bert", "AutoModelForSequenceClassification")
    espalier.cut(model, uneven(espalier.sites(model), 1))
    return model


@pytest.mark.parametrize("name", ["../out.safetensors", "/etc/passwd", "a/b.safetensors", "", "..", 5, None])
def test_an_index_names_only_files_of_its_own_folder(tmp_path, name):
    espalier.save(cut_model(), tmp_path / "cut", max_shard_size="20KB")
    index = tmp_path / "cut/model.safetensors.index.json"
    raw = json.loads(index.read_text())
    raw["weight_map"][next(iter(raw["weight_map"]))] = name
    index.write_text(json.dumps(raw))
    with pytest.raises(EspalierError):
        espalier.load(tmp_path / "cut")


def test_a_recipe_runs_no_python(tmp_path):
    from espalier.reproductions import recipe

    sign = tmp_path / "sign"
    (tmp_path / "evil.py").write_text(evil(sign))
    source = (recipe.FOLDER / "greedy_gnorm/recipes/bert-financial-news.toml").read_text()
    evil_name = str(tmp_path / "evil.py")
    for entry in ("model", "dataset"):
        lines = [
            f'{entry} = "{evil_name}"' if line.startswith(f"{entry} =") else line
            for line in source.splitlines()
        ]
        (tmp_path / "mine.toml").write_text("\n".join(lines))
        done = CliRunner().invoke(
            app, ["compare", "--recipe", str(tmp_path / "mine.toml"), "-o", str(tmp_path / "o")]
        )
        assert isinstance(done.exception, (EspalierError, SystemExit))
        assert not sign.exists(), entry
    lines = [
        f'methods = ["{evil_name}"]' if line.startswith("methods") else line for line in source.splitlines()
    ]
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    done = CliRunner().invoke(
        app, ["compare", "--recipe", str(tmp_path / "mine.toml"), "-o", str(tmp_path / "o")]
    )
    assert isinstance(done.exception, (EspalierError, SystemExit))
    assert not sign.exists()


def test_reports_do_not_follow_links_out_of_their_folder(tmp_path):
    from benchmarks.fuzz import a_run

    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.mkdir()
    (outside / "kept.txt").write_text(SECRET)
    made, rows = a_run()
    (run / "run.json").write_text(json.dumps({**made, "model": ESCAPES, "task": ESCAPES}))
    (run / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("tables", "figures", "published"):
        (run / name).symlink_to(outside, target_is_directory=True)
    for name in ("summary.md", "report.xlsx", "report.html"):
        (run / name).symlink_to(outside / "kept.txt")
    done = CliRunner().invoke(app, ["report", str(run), "--no-figures"])
    assert done.exception is None or isinstance(done.exception, (EspalierError, SystemExit)), done.exception
    assert content(outside) == {"kept.txt": SECRET.encode()}
    assert "\x1b[31m" not in done.output
    for file in run.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.suffix in (".html", ".md", ".tex"):
            assert "<img" not in file.read_text(), file


def test_rows_are_not_written_through_a_link(tmp_path, clean):
    run = tmp_path / "run"
    words = [w.format(model=clean / "model", task=clean / "data.tsv", out=run) for w in VERBS["compare"]]
    assert CliRunner().invoke(app, words).exit_code == 0
    rows = (run / "rows.jsonl").read_bytes()
    (tmp_path / "elsewhere.jsonl").write_bytes(rows[: rows.index(b"\n") + 1])
    (run / "rows.jsonl").unlink()
    (run / "rows.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    before = (tmp_path / "elsewhere.jsonl").read_bytes()
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, (EspalierError, SystemExit))
    assert (tmp_path / "elsewhere.jsonl").read_bytes() == before


def test_what_is_written_is_readable_as_the_umask_says(tmp_path):
    old = os.umask(0o027)
    try:
        espalier.save(cut_model(), tmp_path / "cut", tokenizer=toys.tokenizer())
    finally:
        os.umask(old)
    modes = {oct(file.stat().st_mode & 0o777) for file in (tmp_path / "cut").iterdir()}
    assert modes == {"0o640"}


def test_every_pinned_package_has_digests():
    root = Path(__file__).parents[1]
    pins = {line for line in (root / "constraints.txt").read_text().splitlines() if "==" in line}
    listed = (root / "hashes.txt").read_text().replace(" \\\n", " ").splitlines()
    hashed = {line.split()[0]: line.split()[1:] for line in listed if "==" in line}
    assert pins - set(hashed) == {pin for pin in pins if pin.startswith("torch==")}
    assert all(digests for digests in hashed.values())
    assert {digest[:14] for digests in hashed.values() for digest in digests} == {"--hash=sha256:"}
