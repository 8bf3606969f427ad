"""Folders and files made to harm: links, paths out of a folder, files that shrink, bytes for gigabytes."""

import json
import logging
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from test_sparse_folders import thinned

from espalier import evaluate, load, measure, prune_heads, save
from espalier.core.errors import EspalierError, FolderError, FormatError
from espalier.io.files import read_json
from espalier.io.paths import CONFIG, WEIGHTS, WEIGHTS_INDEX
from espalier.io.rows import Rows, read_rows
from espalier.io.safetensors_file import Entry, SafetensorsFile, write_entries
from espalier.storage import sparse_file
from espalier.storage.recode import decode_folder, encode_folder, weight_files
from espalier.storage.resolve import outline, weights_path
from espalier.storage.sparse_file import KEY, SparseFile, encode_files
from espalier.testing.tiny import tiny


@pytest.fixture
def plain(tmp_path):
    return save(thinned(tiny("bert")), tmp_path / "plain")


# ------------------------------------------------------------------------------------------ links and paths


def test_encode_does_not_copy_what_links_point_at(plain, tmp_path, caplog):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("secret")
    (plain / "README.md").symlink_to(secret / "key")
    (plain / "assets").symlink_to(secret)
    (plain / "inner").mkdir()
    (plain / "inner" / "key").symlink_to(secret / "key")
    (plain / "vocab.txt").write_text("a")
    (plain / "vocab2.txt").symlink_to("vocab.txt")  # of the same model
    os.mkfifo(plain / "pipe")
    with caplog.at_level(logging.WARNING):
        encode_folder(plain, tmp_path / "small")
    names = {p.name for p in (tmp_path / "small").rglob("*")}
    assert {"vocab.txt", "vocab2.txt"} <= names
    assert not {"README.md", "assets", "inner", "key", "pipe"} & names
    assert "README.md, assets, inner, pipe" in caplog.text
    decode_folder(tmp_path / "small", tmp_path / "again")


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_encode_does_not_follow_links_out_of_the_folder(plain, tmp_path, name):
    (plain / name).rename(tmp_path / name)
    (plain / name).symlink_to(tmp_path / name)
    with pytest.raises(FolderError) as error:
        encode_folder(plain, tmp_path / "small")
    assert error.value.path == plain / name


def test_the_cache_of_the_hub_is_a_folder_of_links(plain, tmp_path):
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "0"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in plain.iterdir():
        file.rename(blobs / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    encode_folder(snapshot, tmp_path / "small")
    load(tmp_path / "small")


def test_an_index_lists_only_files_of_its_folder(tmp_path):
    """In every function that reads it, and in transformers' own after `import espalier`."""
    model = prune_heads(tiny("bert"), {0: [1]})
    save(model, tmp_path / "m", max_shard_size="40KB")
    save(model, tmp_path / "other", max_shard_size="40KB")
    index = tmp_path / "m" / WEIGHTS_INDEX
    raw = json.loads(index.read_text())
    (tmp_path / "m" / "inner").mkdir()
    for place in ("../other/", str(tmp_path / "other") + "/", "inner/../../other/"):
        found = {name: place + file for name, file in raw["weight_map"].items()}
        index.write_text(json.dumps({**raw, "weight_map": found}))
        for read in (load, weight_files, lambda folder: weights_path(str(folder))):
            with pytest.raises(FormatError) as error:
                read(tmp_path / "m")
            assert error.value.path == index
        if ".." in place:
            with pytest.raises(ValueError, match="outside"):
                transformers.AutoModel.from_pretrained(tmp_path / "m")


def test_rows_are_not_written_or_read_through_a_link(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "secret").write_text('{"a": 1}\n')
    path = tmp_path / "run" / "rows.jsonl"
    rows = Rows(path)
    path.symlink_to(tmp_path / "secret")
    for use in (lambda: rows.add({"b": 2}), lambda: Rows(path), lambda: read_rows(path)):
        with pytest.raises(FolderError):
            use()
    assert (tmp_path / "secret").read_text() == '{"a": 1}\n'


def test_rows_are_no_program(tmp_path):
    old = os.umask(0)
    try:
        Rows(tmp_path / "rows.jsonl").add({"a": 1})
    finally:
        os.umask(old)
    assert (tmp_path / "rows.jsonl").stat().st_mode & 0o777 == 0o666


# ------------------------------------------------------------------------------------------ files that shrink


def test_a_source_that_is_truncated_while_it_is_read(plain, tmp_path):
    """An error, not the signal that a mapped file would end in. In a process of its own for that reason."""
    code = (
        "import os, sys\n"
        "from espalier.core.errors import FormatError\n"
        "from espalier.io.safetensors_file import SafetensorsFile\n"
        "file = SafetensorsFile(sys.argv[1])\n"
        "os.truncate(sys.argv[1], 4096)\n"
        "try: [file.bytes(name) for name in file.entries]\n"
        "except FormatError as error: print(error.path)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, plain / WEIGHTS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(plain / WEIGHTS)), done.stderr[-1000:]
    for read in (load, lambda folder: weights_path(str(folder)), lambda f: encode_folder(f, tmp_path / "x")):
        with pytest.raises(FormatError) as error:
            read(plain)
        assert error.value.path == plain / WEIGHTS
    assert not (tmp_path / "x").exists()


def test_a_missing_or_short_shard(tmp_path):
    save(tiny("bert"), tmp_path / "m", max_shard_size="40KB")
    shard = sorted((tmp_path / "m").glob("model-*.safetensors"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(FormatError) as error:
        load(tmp_path / "m")
    assert error.value.path == shard
    shard.unlink()
    with pytest.raises(FolderError) as error:
        load(tmp_path / "m")
    assert error.value.path == shard


# ------------------------------------------------------------------------------------------ bombs


def bomb(path, tensors, elements):
    """A file of encoded tensors that are all zero: a few hundred bytes for each of any size."""
    spec = {"encoding": "coo", "dtype": "float32", "shape": [elements], "nnz": 0}
    table = {f"t{i}": spec for i in range(tensors)}
    entries = [
        e for n in table for e in (Entry(f"{n}::values", "F32", (0,)), Entry(f"{n}::places", "U8", (0,)))
    ]
    about = {KEY: json.dumps({"version": 1, "tensors": table})}
    write_entries(path, about, entries, (np.empty(0, np.uint8) for _ in entries))
    return path


def test_many_small_tensors_do_not_add_up_to_gigabytes(tmp_path):
    path = bomb(tmp_path / "bomb.safetensors", 2000, 1 << 18)  # each within the limit of one tensor
    assert path.stat().st_size < 1_000_000
    tracemalloc.start()
    with pytest.raises(FormatError) as error:
        SparseFile(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.value.path == path
    assert peak < 20 * path.stat().st_size
    assert len(SparseFile(bomb(tmp_path / "few.safetensors", 20, 1 << 18)).names) == 20


def test_the_encoder_obeys_the_limit_of_the_reader(tmp_path, monkeypatch):
    monkeypatch.setattr(sparse_file, "FILE_FREE", 1 << 16)
    zeros = {f"t{i}": torch.zeros(64, 64) for i in range(40)} | {"w": torch.rand(16)}
    safetensors.torch.save_file(zeros, tmp_path / "a.safetensors")
    stored = encode_files([tmp_path / "a.safetensors"], tmp_path / "b.safetensors")
    assert {one.encoding == "plain" for one in stored} == {True, False}
    file = SparseFile(tmp_path / "b.safetensors")
    assert all(torch.equal(file.tensor(name), tensor) for name, tensor in zeros.items())


def test_nested_json_is_damage(tmp_path):
    path = tmp_path / "a"
    for text, read in (
        ("[" * 100_000, read_json),
        ('{"a":' * 100_000, read_json),
        ("[" * 100_000 + "\n", read_rows),
    ):
        path.write_text(text)
        with pytest.raises(FormatError):
            read(path)


GRAFTS = (
    {"as": [[]]},
    {"as": ["Headless"]},
    {"as": ["Narrowed"], "heads": 6, "kept": [0]},
    {"as": ["SharedBias"], "heads": 6},
    {"as": ["SharedBias"], "heads": 6, "kept": [9]},
    {"as": ["SharedBias"], "heads": 6, "kept": [[0]]},
    {"as": ["Headless"], "tail": "a/b"},
)


@pytest.mark.parametrize("graft", GRAFTS)
def test_grafts_that_could_not_run_are_refused(tmp_path, graft):
    save(prune_heads(tiny("bert"), {0: [1]}), tmp_path / "m")
    config = json.loads((tmp_path / "m" / CONFIG).read_text())
    config["quantization_config"]["skeleton"]["grafts"]["encoder.layer.0.attention.self"] = graft
    (tmp_path / "m" / CONFIG).write_text(json.dumps(config))
    with pytest.raises(FormatError):
        load(tmp_path / "m")


@pytest.mark.parametrize("change", [{"num_attention_heads": 0}, {"hidden_size": "wide"}, {"vocab_size": -1}])
def test_a_config_of_wrong_values(tmp_path, change):
    save(prune_heads(tiny("bert"), {0: [1]}), tmp_path / "m")
    config = json.loads((tmp_path / "m" / CONFIG).read_text())
    (tmp_path / "m" / CONFIG).write_text(json.dumps(config | change))
    with pytest.raises(EspalierError):
        load(tmp_path / "m")


@pytest.mark.parametrize(
    "change",
    [
        {"intermediate_size": 2**31},
        {"hidden_size": 2**40},
        {"vocab_size": 2**27},
        {"max_position_embeddings": 2**27},
        {"num_hidden_layers": 2**31},
        {"num_hidden_layers": 2000},
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_model_that_is_too_large_for_its_files_is_not_allocated(tmp_path, change, sparse, monkeypatch):
    small = thinned(tiny("bert"))
    prune_heads(small, {0: [1]})
    folder = save(small, tmp_path / "m", sparse=sparse)
    config = {**read_json(folder / CONFIG), **change}
    (folder / CONFIG).write_text(json.dumps(config))

    allocated = []
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", lambda *_, **__: allocated.append(1))
    for read in (load, lambda path: measure(path, rounds=1), lambda path: evaluate(path, "demo")):
        with pytest.raises(FormatError):
            read(folder)
        assert not allocated
    if change.get("num_hidden_layers", 0) > 2000:
        with pytest.raises(FormatError):
            outline(str(folder / CONFIG))


def test_a_file_whose_header_lists_what_it_does_not_have(tmp_path):
    path = tmp_path / "a.safetensors"
    for shape in ([1 << 60], [1 << 30, 1 << 30], [-1], [1.5]):
        header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 8]}}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        with pytest.raises(FormatError):
            SafetensorsFile(path)
