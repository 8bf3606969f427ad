"""Sparse files: smaller on disk, equal in memory, and damage is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from espalier import EspalierError
from espalier.core.errors import FolderError, FormatError, UnsupportedError
from espalier.io.safetensors_file import SafetensorsFile
from espalier.storage.encodings.source import DTYPES, words_of
from espalier.storage.int8 import from_int8, is_block_matrix, to_int8
from espalier.storage.sparse_file import KEY, SparseFile, decode_file, encode_files

DRAW = torch.Generator().manual_seed(0)


def holed(*shape, p=0.9, dtype=torch.float32):
    tensor = torch.randn(shape, generator=DRAW)
    return tensor.masked_fill_(torch.rand(shape, generator=DRAW) < p, 0).to(dtype)


def written(path, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def some_tensors():
    return {
        "layer.0.fc.w": holed(100, 120),
        "layer.1.fc.w": holed(64, 50, p=0.4, dtype=torch.bfloat16),
        "full": torch.randn(30, 30, generator=DRAW),
        "b": torch.randn(7, generator=DRAW).half(),  # three bytes off any alignment
        "ids": torch.arange(5),
        "nothing": torch.zeros(0, 4),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "flags": torch.rand(9000, generator=DRAW) < 0.05,
        "zeros": torch.zeros(2000, 1000),
        "complex": torch.ones(3, dtype=torch.complex64),
    }


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain.safetensors"
    safetensors.torch.save_file(some_tensors(), path, {"format": "pt", "mine": "kept"})
    return path


@pytest.fixture
def encoded(plain, tmp_path):
    encode_files([plain], tmp_path / "encoded.safetensors")
    return tmp_path / "encoded.safetensors"


def test_a_file_comes_back_bit_for_bit(plain, encoded, tmp_path):
    decode_file(encoded, tmp_path / "again.safetensors")
    before, after = (safetensors.torch.load_file(f) for f in (plain, tmp_path / "again.safetensors"))
    assert set(before) == set(after)
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype, name
        assert after[name].shape == tensor.shape, name
        assert torch.equal(after[name], tensor), name
    assert SafetensorsFile(tmp_path / "again.safetensors").metadata == {"format": "pt", "mine": "kept"}


def test_what_is_encoded_and_what_stays(encoded, plain):
    file = SparseFile(encoded)
    assert set(file.table) == {"layer.0.fc.w", "layer.1.fc.w", "flags", "zeros"}
    assert set(file.names) == set(some_tensors())
    stock = safetensors.torch.load_file(encoded)  # any reader of safetensors sees the rest
    assert torch.equal(stock["ids"], torch.arange(5))
    assert stock["layer.0.fc.w::values"].dtype == torch.float32
    assert encoded.stat().st_size < plain.stat().st_size / 20


def test_counts_are_the_bytes_on_the_disk(plain, tmp_path):
    counts = encode_files([plain], tmp_path / "out.safetensors")
    stored = safetensors.torch.load_file(tmp_path / "out.safetensors")
    assert sum(c.after for c in counts) == sum(t.numel() * t.element_size() for t in stored.values())
    assert sum(c.before for c in counts) == sum(t.numel() * t.element_size() for t in some_tensors().values())
    assert all(c.after >= c.bound - 1 for c in counts)


@pytest.mark.parametrize("p", [0.3, 0.5, 0.8, 0.95])
def test_the_file_is_within_five_per_cent_of_the_bound(p, tmp_path):
    tensor = holed(512, 512, p=p)
    safetensors.torch.save_file({"w": tensor}, tmp_path / "a.safetensors")
    (count,) = encode_files([tmp_path / "a.safetensors"], tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").stat().st_size < 1.05 * count.bound


def test_several_files_become_one_and_negative_zeros_are_counted(tmp_path):
    a, b = holed(50, 60), -torch.zeros(70, 80)
    safetensors.torch.save_file({"a": a}, tmp_path / "1.safetensors")
    safetensors.torch.save_file({"b": b}, tmp_path / "2.safetensors")
    both = [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    counts = encode_files(both, tmp_path / "out.safetensors")
    assert [c.negative_zeros for c in counts] == [0, 5600]
    file = SparseFile(tmp_path / "out.safetensors")
    assert torch.equal(file.tensor("a"), a)
    assert np.array_equal(words_of(file.tensor("b")), words_of(b))


def test_a_tensor_is_in_one_source_only(tmp_path):
    """One would be encoded and the other stay plain: a file with both could not be read."""
    one, two, out = (tmp_path / f"{name}.safetensors" for name in ("1", "2", "out"))
    safetensors.torch.save_file({"w": torch.zeros(64, 64)}, one)
    safetensors.torch.save_file({"w": torch.randn(64, 64)}, two)
    for sources in ([one, two], [two, one], [one, one]):
        with pytest.raises(FormatError):
            encode_files(sources, out)
    assert not out.exists()
    safetensors.torch.save_file({"v": torch.zeros(64, 64), "v::values": torch.ones(1)}, one)
    with pytest.raises(FormatError):
        encode_files([one], out)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_through_a_file_bit_for_bit(dtype, tmp_path):
    kind, (a, b, c) = DTYPES[dtype], (tmp_path / f"{i}.safetensors" for i in range(3))
    words = torch.randint(0, 2 if dtype == "bool" else 256, (90 * 70 * kind.itemsize,), generator=DRAW)
    words = words.to(torch.uint8).view(90, 70, kind.itemsize)
    words[torch.rand(90, 70, generator=DRAW) < 0.9] = 0
    tensor = words.view(kind)[..., 0]
    safetensors.torch.save_file({"w": tensor.contiguous(), "b": torch.ones(3).half()}, a)
    (count,) = (one for one in encode_files([a], b) if one.name == "w")
    assert (count.encoding == "plain") == (dtype == "float4_e2m1fn_x2")
    assert count.before == 90 * 70 * kind.itemsize
    decode_file(b, c)
    again = safetensors.torch.load_file(c)["w"]
    assert again.dtype == kind
    assert again.shape == tensor.shape
    assert np.array_equal(words_of(again), words_of(tensor))
    if dtype == "float4_e2m1fn_x2":
        with pytest.raises(UnsupportedError):
            SparseFile(b).tensor("w")


@pytest.mark.parametrize(("dtype", "size"), [("F4", 8), ("F6_E2M3", 12), ("F6_E3M2", 12)])
def test_dtypes_shorter_than_a_byte_stay_as_they_are(dtype, size, tmp_path):
    """torch has no F6 at all; safetensors has checked the length in the header."""
    path, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    whole = torch.zeros(500, 4).numpy().tobytes()
    header = {
        "w": {"dtype": "F32", "shape": [500, 4], "data_offsets": [0, 8000]},
        "q": {"dtype": dtype, "shape": [4, 4], "data_offsets": [8000, 8000 + size]},
        "b": {"dtype": "U8", "shape": [3], "data_offsets": [8000 + size, 8003 + size]},
    }
    tail = bytes(range(1, size + 4))
    written(path, header, whole + tail)
    counts = {c.name: c for c in encode_files([path], out)}
    assert (counts["q"].encoding, counts["q"].before, counts["q"].after) == ("plain", size, size)
    assert counts["w"].encoding != "plain"
    decode_file(out, tmp_path / "c.safetensors")
    again = SafetensorsFile(tmp_path / "c.safetensors")
    assert again.entries["q"] == SafetensorsFile(path).entries["q"]
    assert again.bytes("q").tobytes() + again.bytes("b").tobytes() == tail
    header["q"]["data_offsets"][1] += 1
    header["b"]["data_offsets"] = [n + 1 for n in header["b"]["data_offsets"]]
    written(path, header, whole + tail + b"x")
    with pytest.raises(FormatError):
        SafetensorsFile(path)
    header["q"]["dtype"] = "F3"
    written(path, header, whole + tail + b"x")
    with pytest.raises(FormatError):
        SafetensorsFile(path)


# ------------------------------------------------------------------------------------------ writing safely


def test_a_failed_write_leaves_the_older_file(plain, tmp_path, monkeypatch):
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"older")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(FolderError):
        encode_files([plain], out)
    assert out.read_bytes() == b"older"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.safetensors", "plain.safetensors"]


def test_only_safetensors_are_replaced(plain, encoded, tmp_path):
    (tmp_path / "thesis.docx").write_text("months of work")
    with pytest.raises(FolderError):
        encode_files([plain], tmp_path / "thesis.docx")
    with pytest.raises(FolderError):
        decode_file(encoded, tmp_path)
    with pytest.raises(FolderError):
        encode_files([plain], tmp_path / "nowhere" / "x.safetensors")
    with pytest.raises(FolderError):
        encode_files([plain], tmp_path / "thesis.docx", overwrite=True)
    assert (tmp_path / "thesis.docx").read_text() == "months of work"


def test_encoding_twice_and_decoding_a_plain_file_are_refused(plain, encoded, tmp_path):
    with pytest.raises(FormatError):
        encode_files([encoded], tmp_path / "x.safetensors")
    with pytest.raises(FormatError):
        decode_file(plain, tmp_path / "x.safetensors")


# ------------------------------------------------------------------------------------------ damaged files


def rewritten(path, change):
    """The same file with another header: `change(header, table)` does what it likes."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    about = json.loads(header["__metadata__"][KEY])
    change(header, about["tensors"])
    header["__metadata__"][KEY] = json.dumps(about)
    return written(path, header, raw[8 + length :])


def refused(path):
    with pytest.raises(FormatError):
        decode_file(path, path.with_name("out.safetensors"))
    assert not path.with_name("out.safetensors").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [10**9, 10**9]},
        {"shape": [1 << 30, 1 << 20]},
        {"shape": [-1, 3]},
        {"shape": "big"},
        {"nnz": 3},
        {"nnz": 1 << 70},
        {"nnz": True},
        {"k": 99},
        {"dtype": "float16"},
        {"dtype": "object"},
        {"dtype": "float4_e2m1fn_x2"},
        {"encoding": "zip"},
        {"was": "int64"},
        {"more": 1},
    ],
    ids=str,
)
def test_wrong_descriptions_are_refused(encoded, change):
    rewritten(encoded, lambda h, t: t["layer.0.fc.w"].update(change))
    refused(encoded)


@pytest.mark.parametrize("name", ["full", "other"])
def test_descriptions_of_other_tensors_are_refused(encoded, name):
    """Of one that is also plain, and of one that is not in the file."""
    rewritten(encoded, lambda h, t: t.update({name: t["layer.0.fc.w"]}))
    refused(encoded)


def test_a_description_that_is_not_an_object_is_refused(encoded):
    rewritten(encoded, lambda h, t: t.update({"layer.0.fc.w": 5}))
    refused(encoded)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version":2,"tensors":{}}', '{"version":1,"tensors":3}'])
def test_a_table_that_is_none_is_refused(text, tmp_path):
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"a": torch.ones(3)}, path, {KEY: text})
    refused(path)


def test_few_bytes_cannot_claim_a_terabyte(tmp_path):
    safetensors.torch.save_file({"w": torch.zeros(200, 200)}, tmp_path / "a.safetensors")
    path = tmp_path / "b.safetensors"
    encode_files([tmp_path / "a.safetensors"], path)
    rewritten(path, lambda h, t: t["w"].update(shape=[1 << 20, 1 << 20]))
    refused(path)


def test_the_same_name_twice_in_a_header_is_refused(tmp_path):
    one = '"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    text = f"{{{one},{one}}}".encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"x")
    with pytest.raises(FormatError):
        SafetensorsFile(path)


def test_indices_out_of_range_are_refused_while_decoding(encoded):
    file = SafetensorsFile(encoded)
    raw = bytearray(encoded.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    start, stop = json.loads(raw[8 : 8 + length])["layer.0.fc.w::low"]["data_offsets"]
    raw[8 + length + start : 8 + length + stop - 1] = b"\xff" * (stop - 1 - start)
    assert len(file.bytes("layer.0.fc.w::low")) == stop - start
    encoded.write_bytes(raw)
    refused(encoded)


def test_no_file_an_empty_one_and_a_short_one(encoded, tmp_path):
    with pytest.raises(FolderError):
        SparseFile(tmp_path / "nothing.safetensors")
    for content in (
        b"",
        b"abc",
        b"\xff" * 8,
        (10**15).to_bytes(8, "little"),
        b"\x02" + b"\0" * 7 + b"[]",
    ):
        (tmp_path / "x.safetensors").write_bytes(content)
        refused(tmp_path / "x.safetensors")
    whole = encoded.read_bytes()
    encoded.write_bytes(whole[:-100])
    refused(encoded)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=some.data())
def test_any_damage_gives_a_file_or_an_error(data, encoded):
    """Bytes changed anywhere, header and all, or the end cut off: an EspalierError or a decoded file."""
    raw = bytearray(encoded.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(some.integers(1, 4))):
        where = data.draw(some.integers(0, length + 200))  # most of the damage goes to the header
        raw[where] = data.draw(some.integers(0, 255))
    if data.draw(some.booleans()):
        raw = raw[: data.draw(some.integers(0, len(raw)))]
    path = encoded.with_name("damaged.safetensors")
    path.write_bytes(raw)
    try:
        decode_file(path, encoded.with_name("out.safetensors"))
    except EspalierError:
        return
    assert SafetensorsFile(encoded.with_name("out.safetensors")).entries


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=some.data())
def test_any_description_gives_a_file_or_an_error(data, encoded):
    number = some.one_of(some.integers(-2, 70), some.integers(0, 2**70))
    anything = some.one_of(number, some.text(max_size=4), some.none(), some.lists(number, max_size=3))
    path = encoded.with_name("damaged.safetensors")
    path.write_bytes(encoded.read_bytes())

    def change(header, table):
        name = data.draw(some.sampled_from(sorted(table)))
        key = data.draw(some.sampled_from([*sorted(table[name]), "was", "axis"]))
        table[name][key] = data.draw(anything)

    rewritten(path, change)
    try:
        decode_file(path, encoded.with_name("out.safetensors"))
    except EspalierError:
        return
    assert SafetensorsFile(encoded.with_name("out.safetensors")).entries


# ------------------------------------------------------------------------------------------ eight bits


def test_int8_is_within_half_a_scale_and_zeros_stay():
    weight = holed(40, 70, p=0.5) * torch.logspace(-6, 6, 40)[:, None]
    weight[3] = 0
    numbers, scales = to_int8(weight)
    assert numbers.dtype == torch.int8
    assert scales.dtype == torch.float32
    assert torch.allclose(scales, weight.abs().amax(1) / 127)
    again = from_int8(numbers, scales, torch.float32)
    error = (again.double() - weight.double()).abs()
    assert (error <= scales.double()[:, None] * (0.5 + 1e-5)).all()
    assert (again[weight == 0] == 0).all()
    assert (numbers.abs().amax(1)[scales > 0] == 127).all()  # the whole range is used


def test_int8_has_a_scale_for_each_output_wherever_they_lie():
    """A transposed matrix (inputs, outputs) whose outputs differ a millionfold: none drowns in another."""
    weight = holed(70, 40, p=0.5) * torch.logspace(-6, 6, 40)
    numbers, scales = to_int8(weight, 1)
    turned, same = to_int8(weight.T)
    assert torch.equal(numbers, turned.T)
    assert torch.equal(scales, same)
    again = from_int8(numbers, scales, torch.float32, 1)
    assert torch.equal(again, from_int8(turned, same, torch.float32).T)
    assert to_int8(torch.zeros(3, 0), 1)[1].shape == (0,)


def test_the_axis_of_the_scales_is_in_the_file(plain, tmp_path):
    out, axes = tmp_path / "out.safetensors", {"layer.1.fc.w": 1}
    encode_files([plain], out, int8=True, axes=axes)
    file = SparseFile(out)
    assert [file.table[f"layer.{i}.fc.w"].axis for i in (0, 1)] == [0, 1]
    assert file.file.entries["layer.0.fc.w::scales"].shape == (100,)
    assert file.file.entries["layer.1.fc.w::scales"].shape == (50,)
    assert "axis" not in file.table["layer.0.fc.w"].to_dict()  # as in files from before there was one
    before = safetensors.torch.load_file(plain)["layer.1.fc.w"]
    numbers, scales = to_int8(before, 1)
    assert torch.equal(file.tensor("layer.1.fc.w"), from_int8(numbers, scales, before.dtype, 1))
    whole = out.read_bytes()
    for change in (
        lambda h, t: t["layer.1.fc.w"].update(axis=2),
        lambda h, t: t["layer.1.fc.w"].update(axis=True),
        lambda h, t: t["layer.1.fc.w"].update(axis=-1),
        lambda h, t: t["layer.1.fc.w"].pop("axis"),
        lambda h, t: t["flags"].update(axis=1),
    ):
        out.write_bytes(whole)
        rewritten(out, change)
        with pytest.raises(FormatError):
            SparseFile(out)


def test_int8_refuses_what_it_cannot_hold():
    for value in (float("nan"), float("inf"), 1e-40):
        weight = torch.zeros(2, 2)
        weight[0, 0] = value
        assert to_int8(weight) is None


def test_which_matrices_are_those_of_the_blocks():
    yes = ("encoder.layer.3.attention.self.query.weight", "h.0.attn.c_attn.weight")
    no = (
        "embeddings.word_embeddings.weight",
        "encoder.layer.0.LayerNorm.weight",
        "classifier.weight",
    )
    no += ("block.0.layer.0.SelfAttention.relative_attention_bias.weight",)
    no += ("classifier.1.weight", "score.0.0.weight")  # layers of a head, which have numbers too
    yes += ("encoder.blocks.0.0.attention.q_head.weight", "blocks.3.mlp.0.weight")
    assert all(is_block_matrix(name, "float32", (4, 4)) for name in yes)
    assert not any(is_block_matrix(name, "float32", (4, 4)) for name in no)
    assert not is_block_matrix(yes[0], "float32", (4,))
    assert not is_block_matrix(yes[0], "int64", (4, 4))


def test_an_int8_file_holds_int8_and_keeps_the_rest(plain, tmp_path):
    counts = encode_files([plain], tmp_path / "out.safetensors", int8=True)
    kinds = {c.name: c.encoding for c in counts}
    assert kinds["layer.0.fc.w"].endswith("int8")
    assert kinds["full"] == "plain"
    file, before = SparseFile(tmp_path / "out.safetensors"), safetensors.torch.load_file(plain)
    assert file.file.entries["layer.0.fc.w::values"].dtype == "I8"
    for name in ("layer.0.fc.w", "layer.1.fc.w"):
        after = file.tensor(name)
        scales = before[name].float().abs().amax(1, keepdim=True) / 127
        assert after.dtype == before[name].dtype
        assert (after[before[name] == 0] == 0).all()
        room = 2**-8 * before[name].float().abs() if after.dtype == torch.bfloat16 else 1e-5 * scales
        assert ((after.float() - before[name].float()).abs() <= scales / 2 + room).all()
    assert torch.equal(file.tensor("flags"), before["flags"])


# ------------------------------------------------------------------------------------------ sizes, memory


def test_decoding_reports_the_sizes_of_encoding_reversed(plain, tmp_path):
    there = encode_files([plain], tmp_path / "small.safetensors")
    back = decode_file(tmp_path / "small.safetensors", tmp_path / "again.safetensors")
    assert {c.name: (c.encoding, c.before, c.after) for c in there} == {
        c.name: (c.encoding, c.after, c.before) for c in back
    }
    assert len(there) == len(some_tensors())


def test_reading_one_tensor_at_a_time(tmp_path):
    """Encoding a file of forty tensors takes the memory of a few of them, not of all."""
    tensors = {f"w{i}": holed(1000, 500, p=0.5) for i in range(40)}
    safetensors.torch.save_file(tensors, tmp_path / "a.safetensors")
    code = (
        "import re, sys, torch\n"
        "torch.set_num_threads(1)\n"  # each thread keeps memory of its own
        "from espalier.storage.sparse_file import encode_files\n"
        "def memory(which):\n"  # what is mapped from the file does not count: it can be dropped any time
        "    return int(re.search(which + r':\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "import threading, time\n"
        "peak, on = [0], [True]\n"
        "def watch():\n"
        "    while on[0]:\n"
        "        peak[0] = max(peak[0], memory('RssAnon')); time.sleep(0.002)\n"
        "before = memory('RssAnon')\n"
        "thread = threading.Thread(target=watch); thread.start()\n"
        "encode_files([sys.argv[1]], sys.argv[2])\n"
        "on[0] = False; thread.join()\n"
        "print(1024 * (peak[0] - before))\n"
    )
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20_000_000  # of 80 MB
    assert Path(paths[1]).stat().st_size < 0.6 * Path(paths[0]).stat().st_size
