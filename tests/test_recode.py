"""Encode and decode the folder of a model: weight files are converted, all other files are copied."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from test_sparse_folders import thinned

from espalier import cut, load, save, sites
from espalier.core.errors import FolderError, FormatError, UnsupportedError
from espalier.io.paths import CONFIG, MANIFEST, MODELING, PLAN, SPARSE_WEIGHTS
from espalier.storage.encodings.source import words_of
from espalier.storage.recode import decode_folder, encode_folder, weight_files
from espalier.testing.tiny import tiny, uneven

CLASSIFIER = "AutoModelForSequenceClassification"


def tensors(folder):
    """All tensors of plain files, whatever their names."""
    found = {}
    for file in Path(folder).glob("model*.safetensors"):
        found |= safetensors.torch.load_file(file)
    return found


def same_tensors(a, b):
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype, name
        assert np.array_equal(words_of(tensor), words_of(b[name])), name


@pytest.fixture
def model():
    return thinned(tiny("bert", CLASSIFIER))


@pytest.mark.parametrize("saved", ["by transformers", "in shards", "whole", "cut"])
def test_a_folder_goes_there_and_back(saved, model, tmp_path):
    """Bit for bit, with its tokenizer, its training record and its origin."""
    plain, small, again = (tmp_path / name for name in ("plain", "small", "again"))
    if saved == "cut":
        cut(model, uneven(sites(model), 1), report=False)
    if saved in ("whole", "cut"):
        save(model, plain, origin={"by": "hand", "model": "group/dense"})
    else:
        model.save_pretrained(plain, max_shard_size="40KB" if saved == "in shards" else "5GB")
    (plain / "tokenizer.json").write_text("{}")
    (plain / "training.json").write_text('{"origin": {}}')
    (plain / "1_Pooling").mkdir()
    (plain / "1_Pooling" / "config.json").write_text("{}")
    shards = list(plain.glob("*.safetensors"))
    assert (len(shards) > 1) == (saved == "in shards")
    there = encode_folder(plain, small)
    assert sorted(weight_files(plain)) == sorted(shards)
    assert weight_files(small) == [small / SPARSE_WEIGHTS]
    before = sum(file.stat().st_size for file in shards)
    assert (small / SPARSE_WEIGHTS).stat().st_size < before
    back = decode_folder(small, again)
    assert {(c.name, c.before, c.after) for c in there} == {(c.name, c.after, c.before) for c in back}
    same_tensors(tensors(plain), tensors(again))
    for name in ("tokenizer.json", "training.json", "1_Pooling/config.json", "plan.json"):
        for folder in (small, again):
            if (plain / name).exists():
                assert (folder / name).read_bytes() == (plain / name).read_bytes()
    assert json.loads((again / "config.json").read_text()) == json.loads((plain / "config.json").read_text())
    assert (again / "modeling_espalier.py").exists() == (saved == "cut")
    assert not (again / SPARSE_WEIGHTS).exists()
    for folder in (small, again):
        for each in (load(folder), type(model).from_pretrained(folder)):
            same_tensors(dict(model.state_dict()), dict(each.state_dict()))


def test_int8_is_smaller_and_has_no_record_of_a_training(model, tmp_path):
    save(model, tmp_path / "plain")
    (tmp_path / "plain" / "training.json").write_text("{}")
    encode_folder(tmp_path / "plain", tmp_path / "small")
    stored = encode_folder(tmp_path / "plain", tmp_path / "int8", int8=True)
    assert any(one.encoding.endswith(" int8") for one in stored)
    sizes = [(tmp_path / name / SPARSE_WEIGHTS).stat().st_size for name in ("small", "int8")]
    assert sizes[1] < sizes[0]
    assert (tmp_path / "small" / "training.json").exists()
    assert not (tmp_path / "int8" / "training.json").exists()


def test_no_tensor_is_converted_initialised_or_dropped(tmp_path):
    """Mixed dtypes, a dtype that the config does not know, too few and too many tensors: unchanged."""
    plain = tmp_path / "plain"
    model = thinned(tiny("bert", CLASSIFIER)).to(torch.bfloat16)
    for name, module in model.named_modules():
        if "LayerNorm" in name:
            module.float()
    model.save_pretrained(plain)
    path = plain / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": "float16"}))
    encode_folder(plain, tmp_path / "small")
    mixed = load(tmp_path / "small")
    same_tensors(dict(model.state_dict()), dict(mixed.state_dict()))
    stored = tensors(plain)
    del stored["classifier.weight"]
    stored["cls.decoder.weight"] = torch.zeros(30, 40)
    safetensors.torch.save_file(stored, plain / "model.safetensors", {"format": "pt"})
    encode_folder(plain, tmp_path / "other")
    decode_folder(tmp_path / "other", tmp_path / "again")
    same_tensors(stored, tensors(tmp_path / "again"))


def test_a_language_model_keeps_its_generation_config(tmp_path):
    plain, model = tmp_path / "plain", thinned(tiny("gpt2", "AutoModelForCausalLM"))
    model.save_pretrained(plain)
    config = '{"temperature": 0.3, "do_sample": false}'  # transformers would not write this
    (plain / "generation_config.json").write_text(config)
    encode_folder(plain, tmp_path / "small", int8=True)
    assert (tmp_path / "small" / "generation_config.json").read_text() == config
    name = "transformer.h.0.attn.c_attn.weight"  # its outputs are columns, and so are its scales
    (count,) = (c for c in encode_folder(plain, tmp_path / "small", int8=True) if c.name == name)
    assert "int8" in count.encoding
    scales = safetensors.torch.load_file(tmp_path / "small" / SPARSE_WEIGHTS)[f"{name}::scales"]
    assert len(scales) == model.state_dict()[name].shape[1]
    decode_folder(tmp_path / "small", tmp_path / "again")
    assert load(tmp_path / "again").transformer.wte.weight.equal(model.transformer.wte.weight)


def test_other_weights_are_left_out_and_named(model, tmp_path, caplog):
    plain, small = tmp_path / "plain", tmp_path / "small"
    model.save_pretrained(plain)
    (plain / "tf_model.h5").write_bytes(bytes(9))
    (plain / "onnx").mkdir()
    (plain / "onnx" / "model.onnx").write_bytes(bytes(9))
    (plain / ".espalier-training").mkdir()
    with caplog.at_level(logging.WARNING):
        encode_folder(plain, small)
    assert ".espalier-training, onnx, tf_model.h5" in caplog.text
    assert {p.name for p in small.iterdir()} == {CONFIG, PLAN, MODELING, SPARSE_WEIGHTS, MANIFEST}


def test_folders_that_cannot_be_encoded(model, tmp_path):
    plain, small, new = tmp_path / "plain", tmp_path / "small", tmp_path / "x"
    save(model, plain)
    encode_folder(plain, small)
    before = (small / SPARSE_WEIGHTS).read_bytes()
    (tmp_path / "empty").mkdir()
    for source, target in (
        (plain, plain),
        (plain, plain / "inside"),
        (small, new),  # encoded already
        (tmp_path / "empty", new),
    ):
        with pytest.raises(FolderError):
            encode_folder(source, target)
    with pytest.raises(FolderError) as error:
        decode_folder(plain, new)
    assert error.value.path == plain
    config = json.loads((plain / "config.json").read_text())
    for wrong, kind in (
        ({"architectures": ["MineForAll"]}, UnsupportedError),
        ({"quantization_config": {"quant_method": "fp8"}}, UnsupportedError),
        ({"hidden_size": "wide"}, FormatError),
    ):
        (plain / "config.json").write_text(json.dumps(config | wrong))
        with pytest.raises(kind):
            encode_folder(plain, small)
    (plain / "config.json").write_text(json.dumps(config))
    whole = (plain / "model.safetensors").read_bytes()
    (plain / "model.safetensors").write_bytes(whole[:2000])
    with pytest.raises(FormatError) as error:
        encode_folder(plain, small)
    assert error.value.path == plain / "model.safetensors"
    (plain / "model.safetensors").unlink()
    with pytest.raises(FolderError):
        encode_folder(plain, small)
    (plain / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(FormatError):
        encode_folder(plain, small)
    assert not new.exists()
    assert (small / SPARSE_WEIGHTS).read_bytes() == before


def test_negative_zeros_are_counted(model, tmp_path):
    with torch.no_grad():
        for site in sites(model, "weights"):
            site.linear.weight.abs_().neg_()  # as multiplying by a mask leaves them
    save(model, tmp_path / "plain")
    zeros = sum(int((site.linear.weight == 0).sum()) for site in sites(model, "weights"))
    stored = encode_folder(tmp_path / "plain", tmp_path / "small")
    assert sum(one.negative_zeros for one in stored) >= zeros > 0


def test_a_dense_model_stays_plain_unless_it_is_rounded(tmp_path):
    save(tiny("bert", CLASSIFIER), tmp_path / "plain")
    assert {one.encoding for one in encode_folder(tmp_path / "plain", tmp_path / "a")} == {"plain"}
    rounded = encode_folder(tmp_path / "plain", tmp_path / "b", int8=True)
    assert sum(one.after for one in rounded) < sum(one.before for one in rounded)
    again = decode_folder(tmp_path / "b", tmp_path / "c")
    assert any(one.encoding.endswith("int8") for one in again)
