"""Output folders: only what espalier wrote as the same output is replaced, and no other file is deleted."""

import errno
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from test_sparse_folders import thinned
from typer.testing import CliRunner

from espalier import export, load, save
from espalier.cli import app
from espalier.core.errors import EspalierError, FolderError
from espalier.io import files, output
from espalier.io.files import (
    clean,
    leftovers,
    locked,
    make_folder,
    temporary_sibling,
    write_bytes,
    write_file,
)
from espalier.io.output import check_replaceable, write_folder
from espalier.io.paths import CONFIG, MANIFEST, WEIGHTS, run_beside
from espalier.io.spreadsheet import write_book
from espalier.reports import write_csv
from espalier.storage.recode import decode_folder, encode_folder
from espalier.storage.sparse_file import decode_file, encode_files
from espalier.testing.tiny import tiny

NOTES = {"notes.md": b"mine", "optimizer.pt": b"state", "checkpoint-5/model.safetensors": b"older"}


def fill(folder):
    for name, data in NOTES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def writers(tmp_path):
    """Every function that writes the folder of a model, as write(folder, overwrite=…)."""
    model = thinned(tiny("bert", "AutoModelForSequenceClassification"))
    llama = tiny("llama", "AutoModelForCausalLM")
    save(model, tmp_path / "plain")
    encode_folder(tmp_path / "plain", tmp_path / "encoded")
    return {
        "save": lambda folder, **how: save(model, folder, **how),
        "sparse": lambda folder, **how: save(model, folder, sparse=True, **how),
        "export": lambda folder, **how: export(llama, folder, **how),
        "encode": lambda folder, **how: encode_folder(tmp_path / "plain", folder, **how),
        "decode": lambda folder, **how: decode_folder(tmp_path / "encoded", folder, **how),
    }


@pytest.mark.parametrize("name", ["save", "sparse", "export", "encode", "decode"])
def test_the_model_of_another_is_not_replaced(name, tmp_path):
    """A folder of transformers with notes, an optimizer and a checkpoint, given to -o by mistake."""
    write, theirs = writers(tmp_path)[name], tmp_path / "theirs"
    tiny("gpt2", "AutoModelForCausalLM").save_pretrained(theirs, max_shard_size="40KB")
    fill(theirs)
    before = content(theirs)
    with pytest.raises(FolderError) as error:
        write(theirs)
    assert error.value.path == theirs
    assert content(theirs) == before
    write(theirs, overwrite=True)
    after = content(theirs)
    assert NOTES.items() <= after.items()
    assert json.loads(after[MANIFEST])["version"] == 1
    assert not {"model-00001-of-00002.safetensors", "model.safetensors.index.json"} & set(after)
    assert after[CONFIG] != before[CONFIG]


@pytest.mark.parametrize("name", ["save", "sparse", "export", "encode", "decode"])
def test_an_output_is_written_again(name, tmp_path):
    """The same call twice; what others put there in between stays, what others changed is refused."""
    write, folder = writers(tmp_path)[name], tmp_path / "out"
    write(folder)
    fill(folder)
    (folder / "link").symlink_to(tmp_path / "plain" / CONFIG)
    write(folder)
    assert NOTES.items() <= content(folder).items()
    assert (folder / "link").is_symlink()
    weights = next(folder.glob("*.safetensors"))
    os.utime(weights, ns=(0, 0))  # as if written by another program
    with pytest.raises(FolderError):
        write(folder)
    write(folder, overwrite=True)
    write(folder)


def test_other_outputs_of_espalier_are_not_replaced(tmp_path):
    all_of_them = writers(tmp_path)
    for name, write in all_of_them.items():
        write(tmp_path / name)
    before = {name: content(tmp_path / name) for name in all_of_them}
    for name, write in all_of_them.items():
        for other in set(all_of_them) - {name, "save", "sparse"}:  # both are what `save` writes
            with pytest.raises(FolderError):
                write(tmp_path / other)
    assert {name: content(tmp_path / name) for name in all_of_them} == before


def test_a_file_of_the_user_with_the_name_of_a_new_one(tmp_path):
    with write_folder(tmp_path / "m", "x") as place:
        (place / CONFIG).write_text('{"model_type": "x"}')
    (tmp_path / "m" / "tokenizer.json").write_text("mine")
    for text in ("other", "mine"):
        refused = False
        try:
            with write_folder(tmp_path / "m", "x") as place:
                (place / CONFIG).write_text('{"model_type": "x"}')
                (place / "tokenizer.json").write_text(text)
        except FolderError:
            refused = True
        assert refused == (text == "other")
        assert (tmp_path / "m" / "tokenizer.json").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_a_damaged_manifest_means_that_nothing_is_ours(tmp_path):
    save(tiny("bert"), tmp_path / "m")
    for text in ("{", "[]", '{"files": 3}', '{"output": "save"}', "[" * 100_000):
        (tmp_path / "m" / MANIFEST).write_text(text)
        with pytest.raises(FolderError):
            check_replaceable(tmp_path / "m", "save")


def test_folders_that_are_never_written_to(tmp_path, monkeypatch):
    save(tiny("bert"), tmp_path / "m")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("x")
    (tmp_path / "half" / ".espalier-training").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    for name in ("photos", "half", "file"):
        with pytest.raises(FolderError):
            check_replaceable(tmp_path / name, "save", overwrite=True)
    monkeypatch.chdir(tmp_path / "m")
    with pytest.raises(FolderError):
        check_replaceable(".", "save", overwrite=True)
    with pytest.raises(FolderError):
        export(tmp_path / "m", tmp_path / "m", overwrite=True)


def test_files_are_not_replaced_nor_read_and_written_at_once(tmp_path):
    save(thinned(tiny("bert")), tmp_path / "m")
    source = tmp_path / "m" / WEIGHTS
    before = source.read_bytes()
    (tmp_path / "again.safetensors").symlink_to(source)
    os.link(source, tmp_path / "linked.safetensors")
    for target in (source, tmp_path / "again.safetensors", tmp_path / "linked.safetensors"):
        with pytest.raises(FolderError):
            encode_files([source], target, int8=True, overwrite=True)
    target = tmp_path / "small.safetensors"
    encode_files([source], target)
    for write in (encode_files, decode_file):
        with pytest.raises(FolderError):
            write([source] if write is encode_files else target, tmp_path / "linked.safetensors")
    with pytest.raises(FolderError):
        encode_files([source], target)
    encode_files([source], target, overwrite=True)
    assert source.read_bytes() == before


# ------------------------------------------------------------------------------ on disk, and after a kill


def test_everything_is_on_disk_before_the_other_copy_goes(tmp_path, monkeypatch):
    """Files and folders are synced before the rename, the parent after it, and then the old is deleted."""
    model = tiny("bert")
    save(model, tmp_path / "m")
    done = []
    real_sync, real_exchange, real_remove = files.sync, files.exchange, shutil.rmtree

    def note(word, real):
        def call(path, *args, **kwargs):
            done.append((word, Path(path).name))
            return real(path, *args, **kwargs)

        return call

    monkeypatch.setattr("espalier.io.output.sync", note("sync", real_sync))
    monkeypatch.setattr("espalier.io.output.exchange", note("exchange", real_exchange))
    monkeypatch.setattr(shutil, "rmtree", note("remove", real_remove))
    save(model, tmp_path / "m")
    (at,) = [i for i, (word, _) in enumerate(done) if word == "exchange"]
    synced = {name for word, name in done[:at] if word == "sync"}
    assert {WEIGHTS, CONFIG, "plan.json", MANIFEST} <= synced
    assert any(name.startswith(".m.") for name in synced)  # the folder itself
    after = done[at + 1 :]
    assert after[0] == ("sync", tmp_path.name)
    assert after[1][0] == "remove"


def test_a_file_is_synced_with_its_folder(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "sync", lambda path: synced.append(path))
    write_bytes(tmp_path / "a", b"x")
    assert [path.name.split(".")[1] if path != tmp_path else path for path in synced] == ["a", tmp_path]


def test_temporary_names_cannot_be_guessed_and_are_made_exclusively(tmp_path, monkeypatch):
    assert len({temporary_sibling(tmp_path / "a").name for _ in range(100)}) == 100
    (tmp_path / "secret").write_text("kept")
    monkeypatch.setattr(files, "temporary_sibling", lambda *_: tmp_path / "guessed")
    (tmp_path / "guessed").symlink_to(tmp_path / "secret")
    with pytest.raises(FolderError), write_file(tmp_path / "a") as place:
        place.write_text("lost")
    assert (tmp_path / "secret").read_text() == "kept"
    long = tmp_path / ("n" * 250)
    monkeypatch.undo()
    write_bytes(long, b"x")
    assert long.read_bytes() == b"x"


def test_links_are_replaced_and_not_followed(tmp_path):
    (tmp_path / "secret").write_text("kept")
    (tmp_path / "a").symlink_to(tmp_path / "secret")
    write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "secret").read_text() == "kept"
    assert not (tmp_path / "a").is_symlink()
    (tmp_path / "tables").symlink_to(tmp_path)
    with pytest.raises(FolderError):
        make_folder(tmp_path / "tables")


def test_reports_are_not_written_through_links(tmp_path):
    (tmp_path / "secret").write_text("kept")
    (tmp_path / "a.csv").symlink_to(tmp_path / "secret")
    (tmp_path / "a.xlsx").symlink_to(tmp_path / "secret")
    write_csv(tmp_path / "a.csv", [{"x": 1}])
    write_book(tmp_path / "a.xlsx", {"one": [["x"]]})
    assert (tmp_path / "secret").read_text() == "kept"
    assert (tmp_path / "a.csv").read_text() == "x\n1\n"


def test_on_the_command_line(tmp_path):
    """encode onto a model of another, then said aloud; clean."""
    model, theirs = save(tiny("bert"), tmp_path / "model"), tmp_path / "theirs"
    tiny("bert").save_pretrained(theirs)
    fill(theirs)

    def run(*words):
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exception is None or isinstance(done.exception, (EspalierError, SystemExit))
        return done

    for words in (("encode", model), ("export", model), ("encode", model, "--int8")):
        assert isinstance(run(*words, "-o", theirs).exception, FolderError)
    assert run("encode", model, "-o", theirs, "--overwrite").exit_code == 0
    assert NOTES.items() <= content(theirs).items()
    assert isinstance(run("encode", model, "-o", model, "--overwrite").exception, FolderError)
    left = temporary_sibling(theirs)
    left.mkdir()
    assert str(left) in run("clean", theirs).output.replace("\n", "")
    assert not left.exists()


def test_clean_removes_what_killed_writes_left(tmp_path):
    model = tiny("bert")
    save(model, tmp_path / "m")
    target, inside = tmp_path / "m", tmp_path / "m" / "run.json"
    left = [temporary_sibling(target), temporary_sibling(target, "old."), temporary_sibling(inside)]
    for path in (*left[:2], tmp_path / ".m.0123abcd"):
        path.mkdir()
        (path / "half").write_text("x")
    left[2].write_text("x")
    kept = [tmp_path / ".m.mine", target / ".cache.0123abcd", temporary_sibling(tmp_path / "other")]
    running = temporary_sibling(target)
    for path in (*kept, running):
        path.mkdir()
    with locked(running):
        removed = clean(target)
    assert set(removed) == {*left, tmp_path / ".m.0123abcd"}
    assert all(path.exists() for path in (*kept, running))
    assert clean(target) == [running]
    load(target)


def test_clean_puts_back_what_a_killed_exchange_left(tmp_path):
    save(tiny("bert"), tmp_path / "m")
    old = temporary_sibling(tmp_path / "m", "old.")
    (tmp_path / "m").rename(old)
    temporary_sibling(tmp_path / "m").mkdir()
    assert clean(tmp_path / "m")[0] == old
    load(tmp_path / "m")
    assert leftovers(tmp_path / "m") == []
    with pytest.raises(FolderError):
        clean(tmp_path / "none")


def test_the_run_beside_a_folder_without_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_beside(Path("a/b")) == Path("a/b-run")
    for same in (".", "", "../" + tmp_path.name, str(tmp_path)):
        assert run_beside(Path(same)).resolve() == tmp_path.with_name(f"{tmp_path.name}-run")
    assert run_beside(Path("/")) == Path("/-run")


def test_two_folders_exchange_their_names(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    assert files.exchange(tmp_path / "a", tmp_path / "b") is (sys.platform == "linux")
    if sys.platform == "linux":
        assert [(tmp_path / name / "file").read_text() for name in ("a", "b")] == ["b", "a"]
        with pytest.raises(FileNotFoundError):
            files.exchange(tmp_path / "a", tmp_path / "none")
    for code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):  # an old system, or file system
        monkeypatch.setattr("ctypes.get_errno", lambda code=code: code)
        assert not files.exchange(tmp_path / "a", tmp_path / "none")


@pytest.mark.parametrize("code", [28, 30])  # no space left, read-only file system
def test_a_full_or_read_only_disk_says_what_is_kept(tmp_path, monkeypatch, code):
    model = tiny("bert")
    save(model, tmp_path / "m")
    before = content(tmp_path / "m")

    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    for place, name in ((os, "fsync"), (output, "exchange"), (Path, "mkdir"), (Path, "write_bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, fail)
            with pytest.raises(EspalierError) as error:
                save(model, tmp_path / "m")
        assert isinstance(error.value, FolderError), name
        assert error.value.path == tmp_path / "m"
        assert content(tmp_path / "m") == before
        assert [p.name for p in tmp_path.iterdir()] == ["m"], name
    assert torch.equal(load(tmp_path / "m").pooler.dense.weight, model.pooler.dense.weight)


def test_what_was_replaced_is_said(tmp_path, caplog):
    model = tiny("bert", "AutoModelForSequenceClassification")
    caplog.set_level("INFO", logger="espalier")
    save(model, tmp_path / "m")
    assert not caplog.records
    save(model, tmp_path / "m")
    with pytest.raises(ZeroDivisionError), write_folder(tmp_path / "m", "prune of m", overwrite=True):
        raise ZeroDivisionError
    said = [one for one in caplog.records if one.msg.startswith("replaced")]
    assert [one.args for one in said] == [(tmp_path / "m", "save")]
