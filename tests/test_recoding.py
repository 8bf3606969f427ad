"""espalier encode and decode of a model's folder: files become files, and all else comes along."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from commands import refused, typed
from test_sparse_folders import thinned
from typer.testing import CliRunner

from espalier import cut, load, save, sites
from espalier.cli import app
from espalier.storage.encodings.about import words_of
from espalier.storage.recode import decode_folder, encode_folder
from espalier.storage.sparse_folder import FILE
from espalier.testing.architecture import tiny, uneven

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
    """By command: bit for bit, its tokenizer, its record and its origin with it."""
    plain, small, again = (tmp_path / name for name in ("plain", "small", "again"))
    if saved == "cut":
        cut(model, uneven(sites(model), 1), report=False)
    if saved in ("whole", "cut"):
        save(model, plain, origin={"by": "hand", "model": "somebody/dense"})
    else:
        model.save_pretrained(plain, max_shard_size="40KB" if saved == "in shards" else "5GB")
    (plain / "tokenizer.json").write_text("{}")
    (plain / "training.json").write_text('{"origin": {}}')
    (plain / "1_Pooling").mkdir()
    (plain / "1_Pooling" / "config.json").write_text("{}")
    shards = list(plain.glob("*.safetensors"))
    assert (len(shards) > 1) == (saved == "in shards")
    told = json.loads(typed("encode", plain, "-o", small, "--json"))
    assert told["before"] == sum(file.stat().st_size for file in shards)
    assert told["after"] == (small / FILE).stat().st_size < told["before"]
    back = json.loads(typed("decode", small, "-o", again, "--json"))
    assert back["before"] == told["after"]
    same_tensors(tensors(plain), tensors(again))
    for name in ("tokenizer.json", "training.json", "1_Pooling/config.json", "plan.json"):
        for folder in (small, again):
            if (plain / name).exists():
                assert (folder / name).read_bytes() == (plain / name).read_bytes()
    assert json.loads((again / "config.json").read_text()) == json.loads((plain / "config.json").read_text())
    assert (again / "modeling_espalier.py").exists() == (saved == "cut")
    assert not (again / FILE).exists()
    for folder in (small, again):
        for each in (load(folder), type(model).from_pretrained(folder)):
            same_tensors(dict(model.state_dict()), dict(each.state_dict()))


def test_int8_is_smaller_and_has_no_record_of_a_training(model, tmp_path):
    save(model, tmp_path / "plain")
    (tmp_path / "plain" / "training.json").write_text("{}")
    encode_folder(tmp_path / "plain", tmp_path / "small")
    assert " int8" in typed("encode", tmp_path / "plain", "-o", tmp_path / "int8", "--int8")
    sizes = [(tmp_path / name / FILE).stat().st_size for name in ("small", "int8")]
    assert sizes[1] < sizes[0]
    assert (tmp_path / "small" / "training.json").exists()
    assert not (tmp_path / "int8" / "training.json").exists()


def test_no_tensor_is_converted_made_up_or_dropped(tmp_path):
    """Mixed dtypes, a dtype that the config does not know, too few and too many tensors: as they are."""
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
    encode_folder(plain, tmp_path / "odd")
    decode_folder(tmp_path / "odd", tmp_path / "again")
    same_tensors(stored, tensors(tmp_path / "again"))


def test_a_language_model_keeps_its_way_of_generating(tmp_path):
    plain, model = tmp_path / "plain", thinned(tiny("gpt2", "AutoModelForCausalLM"))
    model.save_pretrained(plain)
    odd = '{"temperature": 0.3, "do_sample": false}'  # transformers would not write this
    (plain / "generation_config.json").write_text(odd)
    encode_folder(plain, tmp_path / "small", int8=True)
    assert (tmp_path / "small" / "generation_config.json").read_text() == odd
    name = "transformer.h.0.attn.c_attn.weight"  # its outputs are columns, and so are its scales
    (count,) = (c for c in encode_folder(plain, tmp_path / "small", int8=True) if c.name == name)
    assert "int8" in count.encoding
    scales = safetensors.torch.load_file(tmp_path / "small" / FILE)[f"{name}::scales"]
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
    save(model, small)
    (small / "vocab.txt").write_text("of another model")
    with caplog.at_level(logging.WARNING):
        encode_folder(plain, small)
    assert ".espalier-training, onnx, tf_model.h5" in caplog.text
    assert {p.name for p in small.iterdir()} == {*("config.json", "plan.json", "modeling_espalier.py", FILE)}


def test_folders_that_cannot_be_encoded(model, tmp_path, capsys, monkeypatch):
    both, plain, small = (capsys, monkeypatch), tmp_path / "plain", tmp_path / "small"

    def said(*words):
        return " ".join(refused(*both, *words).split())

    save(model, plain)
    typed("encode", plain, "-o", small)
    before, new = (small / FILE).read_bytes(), tmp_path / "x"
    assert "is the model itself" in said("encode", plain, "-o", plain)
    assert "or inside it" in said("encode", plain, "-o", plain / "inside")
    assert "becomes a folder" in said("encode", plain, "-o", tmp_path / "x.safetensors")
    assert "encoded already" in said("encode", small, "-o", new)
    assert "is not encoded" in said("decode", plain, "-o", new)
    (tmp_path / "empty").mkdir()
    assert "no config.json" in said("encode", tmp_path / "empty", "-o", new)
    (tmp_path / "begun" / ".espalier-training").mkdir(parents=True)
    assert "not finished" in said("encode", tmp_path / "begun", "-o", new)
    trained = tmp_path / "trained"
    save(model, trained)
    (trained / "training.json").write_text("{}")
    assert "would be lost" in said("encode", plain, "-o", trained)
    config = json.loads((plain / "config.json").read_text())
    for wrong, why in (
        ({"architectures": ["MineForAll"]}, "which transformers does not have"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised already (fp8)"),
        ({"hidden_size": "wide"}, "config"),
    ):
        (plain / "config.json").write_text(json.dumps(config | wrong))
        assert why in said("encode", plain, "-o", small)
    (plain / "config.json").write_text(json.dumps(config))
    whole = (plain / "model.safetensors").read_bytes()
    (plain / "model.safetensors").write_bytes(whole[:2000])
    assert "model.safetensors" in said("encode", plain, "-o", small)
    (plain / "model.safetensors").unlink()
    assert "has no model.safetensors" in said("encode", plain, "-o", small)
    (plain / "model.safetensors.index.json").write_text("{}")
    assert "is damaged" in said("encode", plain, "-o", small)
    assert not new.exists()
    assert (small / FILE).read_bytes() == before


def test_zeros_that_are_none_are_said_of_folders_too(model, tmp_path):
    with torch.no_grad():
        for site in sites(model, "weights"):
            site.linear.weight.abs_().neg_()  # as a mask that is multiplied in leaves them
    save(model, tmp_path / "plain")
    words = ["encode", str(tmp_path / "plain"), "-o", str(tmp_path / "small")]
    assert "values are −0.0" in CliRunner().invoke(app, words).output


def test_what_is_gained_and_what_is_lost_is_said(tmp_path):
    save(tiny("bert", CLASSIFIER), tmp_path / "plain")

    def said(*words):
        return CliRunner().invoke(app, [str(word) for word in words]).output

    assert "nothing is gained" in said("encode", tmp_path / "plain", "-o", tmp_path / "a")
    rounded = said("encode", tmp_path / "plain", "-o", tmp_path / "b", "--int8")
    assert "nothing is gained" not in rounded
    assert "stays rounded" in said("decode", tmp_path / "b", "-o", tmp_path / "c")
    assert "stays rounded" not in said("decode", tmp_path / "a", "-o", tmp_path / "d")
