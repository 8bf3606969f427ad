"""Sparse folders: models that come back bit for bit from encoded weights."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from test_sparse_files import rewritten

import espalier
from espalier import Mask, cut, load, save, sites, zero
from espalier.core.errors import FormatError, InvalidValueError
from espalier.io.paths import MODELING, SPARSE_WEIGHTS, WEIGHTS
from espalier.storage.encodings.source import words_of
from espalier.storage.int8 import is_block_matrix
from espalier.storage.sparse_file import SparseFile
from espalier.testing.tiny import inputs, outputs, same, tiny, uneven


def thinned(model, keep=0.2):
    """Most weights of the blocks set to zero."""
    draw = torch.Generator().manual_seed(4)
    masks = {s.name: torch.rand(s.shape, generator=draw) < keep for s in sites(model, "weights")}
    return zero(model, Mask(masks))


TOPS = {
    "bert": "AutoModelForSequenceClassification",
    "gpt2": "AutoModelForCausalLM",
    "t5": "AutoModelForSeq2SeqLM",
    "vit": "AutoModelForImageClassification",
}


@pytest.mark.parametrize("kind", TOPS)
@pytest.mark.parametrize("cutting", [False, True])
def test_a_sparse_folder_comes_back_bit_for_bit(kind, cutting, tmp_path):
    model = tiny(kind, TOPS[kind])
    if cutting:
        cut(model, uneven(sites(model), 1), report=False)
    thinned(model)
    save(model, tmp_path / "plain")
    save(model, tmp_path / "m", sparse=True)
    assert not list((tmp_path / "m").glob("model*.safetensors"))
    size = (tmp_path / "m" / SPARSE_WEIGHTS).stat().st_size
    assert size < 0.8 * (tmp_path / "plain" / WEIGHTS).stat().st_size
    whole = model.state_dict()
    for again in (load(tmp_path / "m"), type(model).from_pretrained(tmp_path / "m")):
        assert again.state_dict().keys() == whole.keys()
        for name, tensor in again.state_dict().items():
            assert np.array_equal(words_of(tensor), words_of(whole[name])), name
        same(outputs(again, inputs(model)), outputs(model, inputs(model)), kind, exact=True)
        assert espalier.plan_of(again).keep == espalier.plan_of(model).keep
    # what was loaded is an ordinary model: it can be saved plain, over the sparse one
    save(again, tmp_path / "m")
    assert not (tmp_path / "m" / SPARSE_WEIGHTS).exists()
    third = load(tmp_path / "m")
    assert all(torch.equal(a, b) for a, b in zip(third.parameters(), model.parameters()))
    assert "sparse" not in (tmp_path / "m" / "config.json").read_text()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_of_sparse_folders(bert, tmp_path, dtype):
    thinned(bert.to(dtype))
    save(bert, tmp_path / "m", sparse=True)
    again = load(tmp_path / "m")
    assert {p.dtype for p in again.parameters()} == {dtype}
    assert all(torch.equal(a, b) for a, b in zip(bert.parameters(), again.parameters()))
    wide = load(tmp_path / "m", dtype=torch.float64)  # another dtype on request
    assert {p.dtype for p in wide.parameters()} == {torch.float64}


def test_shards_become_one_file_and_the_base_model_loads_alone(bert, tmp_path):
    thinned(bert)
    save(bert, tmp_path / "m", sparse=True, max_shard_size="20KB")
    assert [p.name for p in (tmp_path / "m").glob("*.safetensors*")] == [SPARSE_WEIGHTS]
    base = transformers.AutoModel.from_pretrained(tmp_path / "m")
    for name, tensor in base.state_dict().items():
        assert torch.equal(tensor, bert.bert.state_dict()[name]), name


def test_int8_folders(bert, tmp_path):
    thinned(bert)
    save(bert, tmp_path / "m", sparse="int8")
    again, whole = load(tmp_path / "m").state_dict(), bert.state_dict()
    for name, tensor in whole.items():
        if is_block_matrix(name, "float32", tensor.shape):
            scales = tensor.abs().amax(1, keepdim=True) / 127
            assert ((again[name] - tensor).abs() <= scales * (0.5 + 1e-5)).all(), name
            assert (again[name][tensor == 0] == 0).all()
        else:
            assert torch.equal(again[name], tensor), name
    with pytest.raises(InvalidValueError) as error:
        save(bert, tmp_path / "m", sparse="int4")
    assert error.value.parameter == "sparse"


def test_int8_folders_have_a_scale_for_each_output(tmp_path):
    """GPT-2 stores its matrices as (inputs, outputs); here the outputs differ a thousandfold."""
    model = tiny("gpt2", TOPS["gpt2"])
    matrices = {
        f"{path}.weight": module.weight.data
        for path, module in model.named_modules()
        if hasattr(module, "nf")
    }
    for weight in matrices.values():
        weight.mul_(torch.logspace(-3, 0, weight.shape[1]))
    save(model, tmp_path / "m", sparse="int8")
    file, again = SparseFile(tmp_path / "m" / SPARSE_WEIGHTS), load(tmp_path / "m").state_dict()
    stored = {name for name, one in file.table.items() if one.was}
    assert stored
    assert stored <= set(matrices)
    for name in stored:
        scales = matrices[name].abs().amax(0) / 127
        assert ((again[name] - matrices[name]).abs() <= scales * (0.5 + 1e-5)).all(), name
        assert not torch.equal(again[name], matrices[name])


def test_damaged_sparse_folders_are_refused(bert, tmp_path):
    thinned(bert)
    save(bert, tmp_path / "m", sparse=True)
    path = tmp_path / "m" / SPARSE_WEIGHTS
    whole = path.read_bytes()
    rewritten(path, lambda h, t: next(iter(t.values())).update(encoding="zip"))
    with pytest.raises(FormatError):
        load(tmp_path / "m")
    path.write_bytes(whole[:-9])
    with pytest.raises(FormatError):
        load(tmp_path / "m")
    raw, length = bytearray(whole), int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    name = next(n for n in header if n.endswith(("::high", "::mask")))
    start = 8 + length + header[name]["data_offsets"][0]
    raw[start] ^= 0xFF
    raw[start + 1] = 0
    path.write_bytes(raw)
    with pytest.raises(FormatError):
        load(tmp_path / "m")


def test_without_espalier_a_sparse_folder_is_refused(bert, tmp_path):
    """Transformers alone finds no weights; with the folder's own code the error names espalier."""
    thinned(bert)
    save(bert, tmp_path / "m", sparse=True)
    code = (
        "import sys\n"
        "sys.modules['espalier'] = None\n"
        "from transformers import AutoModelForSequenceClassification as Auto\n"
        "for trust in (False, True):\n"
        "    try: Auto.from_pretrained(sys.argv[1], trust_remote_code=trust); print('loaded')\n"
        "    except Exception as error: print(type(error).__name__, 'espalier' in str(error))\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "m"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    alone, trusting = [line for line in done.stdout.splitlines() if line][-2:]
    assert alone == "ValueError True"
    assert trusting == "ValueError True"


def test_the_code_in_a_sparse_folder_finds_espalier(bert, tmp_path):
    """Also that of folders of version 0.1.0, which imports `espalier.sparse_folder`."""
    thinned(bert)
    save(bert, tmp_path / "m", sparse=True)
    modeling = tmp_path / "m" / MODELING
    code = (
        "import sys\n"
        "from transformers import AutoModelForSequenceClassification as Auto\n"
        "model = Auto.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
        "assert 'transformers_modules' in type(model).__module__\n"
        "print(sum(int((p != 0).sum()) for p in model.parameters()))\n"
    )
    for name in ("espalier.storage.sparse_folder", "espalier.sparse_folder"):
        modeling.write_text(modeling.read_text().replace("espalier.storage.sparse_folder", name))
        environment = {**os.environ, "HF_HOME": str(tmp_path / name)}
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path / "m"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert int(done.stdout.split()[-1]) == sum(int((p != 0).sum()) for p in bert.parameters())
