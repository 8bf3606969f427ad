"""Cut models in ONNX Runtime and OpenVINO compute what torch computes, at any batch size and length."""

import json

import numpy as np
import pytest
import torch
import toys

import espalier
from espalier import Mask, cut, save, sites
from espalier.core.errors import (
    DependencyError,
    FolderError,
    FormatError,
    InvalidValueError,
    UnknownNameError,
    UnsupportedError,
)
from espalier.experiment.exported import tokenizer_of
from espalier.exporters import equality, onnx_file, openvino_file
from espalier.exporters.attention import fused_attention
from espalier.exporters.equality import TOLERANCE, are_equal, compare_outputs
from espalier.exporters.exported import open_exported
from espalier.exporters.folder import ranges_of, write_export
from espalier.exporters.generation import open_generator
from espalier.exporters.memory import peak_memory
from espalier.exporters.runtime import OpenedFile
from espalier.exporters.sample import CHECKED, TRACED, input_names, sample
from espalier.exporters.silence import silenced
from espalier.io.paths import is_exported
from espalier.reports.measurement import disturbance
from espalier.testing.tiny import tiny


def uneven(model):
    """The first layer keeps one head or group, the second none, the third all; every other neuron is gone."""
    mask = Mask.ones(sites(model))
    first, second, *_ = sites(model, "heads")
    mask[first.name][1:] = False
    mask[second.name][:] = False
    for site in sites(model, "neurons"):
        mask[site.name][::2] = False
    return cut(model, mask, report=False)


def talkative(model):
    """Larger weights: the likeliest next token depends on those before it, and is not always the same."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(5 if p.dim() > 1 else 1)
    return model


def padded(model, batch, length, names=("input_ids", "attention_mask")):
    return sample(model, list(names), batch, length, seed=99)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A cut classifier, and the same for ONNX Runtime in int8 with a task."""
    work = tmp_path_factory.mktemp("export")
    save(
        uneven(tiny("bert", "AutoModelForSequenceClassification")), work / "small", tokenizer=toys.tokenizer()
    )
    toys.table_of(work / "data.tsv", n=120)
    task = {"task": work / "data.tsv", "calibration": 8, "validation": 20, "test": 20}
    found = espalier.export(work / "small", work / "int8", to="onnx", int8=True, **task)
    return work, found


def test_a_cut_classifier_in_int8(folders):
    work, found = folders
    assert [(one["batch_size"], one["length"]) for one in found["checked"]][:4] == list(CHECKED[:4])
    assert max(one["difference"] for one in found["checked"]) <= TOLERANCE  # fp32, before int8
    int8 = found["int8"]
    assert (int8["ranges"], int8["quantiser"]) == ("dynamic", "onnxruntime.quantization")
    assert 0 < max(one["difference"] for one in int8["checked"]) < 1
    assert (found["torch"]["n"], found["exported"]["metric"]) == (18, "accuracy")
    assert found["change"]["low"] <= found["change"]["value"] <= found["change"]["high"]
    assert 0 <= found["exported"]["low"] <= found["exported"]["high"] <= 1
    assert json.loads((work / "int8" / "export.json").read_text())["change"] == found["change"]
    assert len(found.tables) == 2
    names = {path.name for path in (work / "int8").iterdir()}
    assert {"model.onnx", "config.json", "tokenizer.json", "export.json", ".espalier.json"} <= names
    assert "quantization_config" not in json.loads((work / "int8" / "config.json").read_text())


def test_each_layer_has_its_own_heads_in_one_operator(folders):
    import onnx

    graph = onnx.load(folders[0] / "int8" / "model.onnx").graph
    attention = [node for node in graph.node if node.op_type == "MultiHeadAttention"]
    heads = [a.i for node in attention for a in node.attribute if a.name == "num_heads"]
    assert heads == [1, 6]  # a layer without heads computes none
    assert folders[1]["fused"]["MultiHeadAttention"] == 2
    assert [d.dim_param for d in graph.input[0].type.tensor_type.shape.dim] == ["batch", "length"]
    assert any(node.op_type == "MatMulInteger" for node in graph.node)


def test_an_exported_folder_is_evaluated_and_measured_only(folders):
    work, found = folders
    task = {"task": work / "data.tsv", "validation": 20, "test": 20}
    again = espalier.evaluate(work / "int8", **task)
    assert again["test"]["accuracy"] == found["exported"]["accuracy"]
    assert again["parameters"] == espalier.evaluate(work / "small", **task)["parameters"]
    assert again["zeros"] is None
    assert again.tables
    for call in (espalier.train, espalier.score):
        with pytest.raises(FolderError):
            call(work / "int8", work / "data.tsv")
    with pytest.raises(InvalidValueError) as error:  # beyond its positions
        open_exported(work / "int8")(input_ids=torch.ones(1, 65, dtype=torch.long))
    assert error.value.parameter == "max_length"


def test_a_session_of_its_own_runtime_needs_nothing_of_espalier(folders):
    import onnxruntime
    from transformers import AutoTokenizer

    folder = folders[0] / "int8"
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    texts = dict(AutoTokenizer.from_pretrained(folder)(toys.sentences(3), padding=True, return_tensors="np"))
    given = {one.name: texts[one.name] for one in session.get_inputs()}
    wanted = open_exported(folder)(**{name: torch.from_numpy(x) for name, x in texts.items()}).logits
    assert np.abs(session.run(["logits"], given)[0] - wanted.numpy()).max() < 1e-5


def test_the_memory_of_a_process_of_its_own(folders):
    """Without torch: what a server of this model needs."""
    peak = peak_memory(folders[0] / "int8", 1, 8, 1)
    assert 20 * 2**20 < peak < 400 * 2**20
    with pytest.raises(UnsupportedError):
        peak_memory(folders[0] / "int8", 0, 0, -1)


def test_models_and_engines_are_timed_in_one_run(folders, tmp_path):
    work, _ = folders
    shapes = {"batch_size": [1, 2], "max_length": [8, 16], "rounds": 2}
    task = {"task": work / "data.tsv", "validation": 20, "test": 20}
    found = espalier.measure(
        [work / "small", work / "int8"], work / "small", folder=tmp_path, **shapes, **task
    )
    rows = found["models"]
    assert [(row["batch_size"], row["max_length"]) for row in rows[::3]] == [(1, 8), (1, 16), (2, 8), (2, 16)]
    assert [(row["engine"], row["precision"]) for row in rows[:2]] == [("torch", "fp32"), ("onnx", "int8")]
    assert {row["speedup"] for row in rows[2::3]} == {1}
    for row in rows:
        assert row["low"] <= row["median"] <= row["high"]
        assert row["sequences_per_second"] == pytest.approx(row["batch_size"] / row["median"])
        assert row["macs"] == rows[0]["macs"]
        assert row["test"]["n"] == 18
    assert json.loads((tmp_path / "measurements.json").read_text())["threads"] == torch.get_num_threads()
    assert {"latency.png", "latency.pdf", "pareto.png", "pareto.pdf"} <= {p.name for p in tmp_path.iterdir()}
    assert all(len(line) <= 80 for table in found.tables for line in table.to_text().splitlines())


def test_a_model_without_a_folder_is_exported_with_its_tokenizer(folders, monkeypatch):
    """A live model with the tokenizer that is given, and a name whose weights lie elsewhere."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    work, _ = folders
    how = {"engine": "onnx", "task": work / "data.tsv", "validation": 10, "test": 10, "rounds": 1}
    live = AutoModelForSequenceClassification.from_pretrained(work / "small")
    tokenizer = AutoTokenizer.from_pretrained(work / "small")
    found = espalier.measure(live, max_length=8, tokenizer=tokenizer, **how)
    assert found["models"][0]["test"]["n"] == 10
    monkeypatch.setattr("espalier.experiment.exported.weights_path", lambda name, **_: str(work / "small"))
    assert tokenizer_of("named").get_vocab() == tokenizer.get_vocab()
    assert tokenizer_of(live) is None


def test_a_language_model_with_groups(tmp_path):
    """Keys and values that several heads share; without a cache it generates the same text, only slower."""
    model = uneven(talkative(tiny("llama", "AutoModelForCausalLM", num_hidden_layers=2)))
    record = write_export(model, tmp_path / "lm", "onnx", kv_cache=False)
    assert record["fused"]["MultiHeadAttention"] == 1
    assert (record["cache"], record["cache_refused"]) == (False, "left out")
    prompt = torch.tensor([[5, 8, 13, 21]])
    wanted = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False)
    assert len(set(wanted[0, 4:].tolist())) > 3
    assert open_generator(tmp_path / "lm").generate(prompt, max_new_tokens=6).tolist() == wanted.tolist()
    inputs = padded(model, 3, 29)
    with torch.no_grad():
        wanted = model(**inputs).logits
    got = open_exported(tmp_path / "lm")(**inputs).logits
    real = inputs["attention_mask"].bool()
    assert (wanted - got)[real].abs().max() <= TOLERANCE
    assert model.config._attn_implementation == "sdpa"


def test_token_classifiers_in_openvino(tmp_path):
    model = uneven(tiny("bert", "AutoModelForTokenClassification", num_labels=5, num_hidden_layers=2))
    save(model, tmp_path / "small", tokenizer=toys.tokenizer())
    found = espalier.export(tmp_path / "small", tmp_path / "ov", to="openvino", int8=True)
    assert max(one["difference"] for one in found["checked"]) <= TOLERANCE
    assert found["fused"] == {"ScaledDotProductAttention": 1}
    assert found["int8"]["ranges"] == "dynamic"
    inputs = padded(model, 4, 23)
    got = open_exported(tmp_path / "ov")(**inputs).logits
    with torch.no_grad():
        wanted = model(**inputs).logits
    assert got.shape == (4, 23, 5)
    assert (got - wanted)[inputs["attention_mask"].bool()].abs().max() < 0.5
    import openvino

    compiled = openvino.Core().compile_model(
        tmp_path / "ov" / "model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    plain = compiled({name: value.numpy() for name, value in inputs.items()})["logits"]
    assert np.abs(plain - got.numpy()).max() < 1e-5
    assert {path.name for path in (tmp_path / "ov").glob("*model.*")} == {"model.xml", "model.bin"}


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_embedding_models(to, tmp_path):
    """A sentence-transformers folder: every token's vector is torch's, and what pools them is beside it."""
    model = uneven(tiny("bert", num_hidden_layers=2))
    save(model, tmp_path / "small", tokenizer=toys.tokenizer())
    (tmp_path / "small" / "1_Pooling").mkdir()
    (tmp_path / "small" / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (tmp_path / "small" / "modules.json").write_text('[{"path": ""}, {"path": "1_Pooling"}]')
    found = espalier.export(tmp_path / "small", tmp_path / "out", to=to)
    assert max(one["difference"] for one in found["checked"]) <= TOLERANCE
    assert (
        sum(found["fused"].get(name, 0) for name in ("MultiHeadAttention", "ScaledDotProductAttention")) == 1
    )
    assert (tmp_path / "out" / "1_Pooling" / "config.json").is_file()
    opened = open_exported(tmp_path / "out")
    for batch, length in ((1, 3), (4, 21)):
        inputs = padded(model, batch, length)
        with torch.no_grad():
            wanted = model(**inputs).last_hidden_state
        got = opened(**inputs).last_hidden_state
        assert got.shape == (batch, length, 48)
        assert (got - wanted)[inputs["attention_mask"].bool()].abs().max() <= TOLERANCE


def test_token_classifiers_in_onnx(tmp_path):
    model = uneven(tiny("bert", "AutoModelForTokenClassification", num_labels=5, num_hidden_layers=2))
    save(model, tmp_path / "small", tokenizer=toys.tokenizer())
    found = espalier.export(tmp_path / "small", tmp_path / "out", to="onnx")
    assert (found["fused"]["MultiHeadAttention"], found["cache"], found["cache_refused"]) == (1, False, "")
    inputs = padded(model, 3, 23)
    with torch.no_grad():
        wanted = model(**inputs).logits
    got = open_exported(tmp_path / "out")(**inputs).logits
    assert got.shape == (3, 23, 5)
    assert (got - wanted)[inputs["attention_mask"].bool()].abs().max() <= TOLERANCE


def test_executorch(tmp_path):
    pytest.importorskip("executorch", reason="executorch is an extra of its own: pip install '.[executorch]'")
    model = uneven(tiny("bert", "AutoModelForSequenceClassification", num_hidden_layers=2))
    found = espalier.export(model, tmp_path / "out", to="executorch")
    assert max(one["difference"] for one in found["checked"]) <= TOLERANCE
    inputs = padded(model, 2 * found["largest_batch"] + 1, 9)  # in three passes
    with torch.no_grad():
        wanted = model(**inputs).logits
    assert (open_exported(tmp_path / "out")(**inputs).logits - wanted).abs().max() <= TOLERANCE


# ------------------------------------------------------------------------------------------ without tracing


def test_a_runtime_with_limits_gets_several_passes():
    from transformers import BertConfig

    from espalier.exporters.exported import ExportedModel

    seen = []

    def run(given):
        seen.append(len(given["input_ids"]))
        return {"logits": given["input_ids"].astype(np.float32)}

    model = ExportedModel(run, {"inputs": ["input_ids"], "largest_batch": 2, "longest": 4}, BertConfig())
    ids = torch.arange(15).reshape(5, 3)
    assert torch.equal(model(input_ids=ids).logits, ids.float())
    assert seen == [2, 2, 1]
    with pytest.raises(InvalidValueError) as error:
        model(input_ids=torch.ones(1, 5, dtype=torch.long))
    assert error.value.parameter == "max_length"


def test_peak_memory_is_that_of_each_shape(monkeypatch, folders):
    from espalier.experiment import latency

    monkeypatch.setattr(latency, "peak_memory", lambda _, batch, length, threads: 1000 * batch + length)
    shapes = {"batch_size": [2, 1], "max_length": [8, 4], "rounds": 1}
    found = espalier.measure(folders[0] / "small", memory=True, **shapes)
    assert [one["peak_bytes"] for one in found["models"]] == [2008, 2004, 1008, 1004]
    (live,) = espalier.measure(tiny("bert"), memory=True, max_length=4, rounds=1)["models"]
    assert live["peak_bytes"] is None  # no other process can open it


def test_a_language_model_is_timed_without_a_cache_in_every_engine(monkeypatch):
    from espalier.experiment import latency

    model, seen = tiny("llama", "AutoModelForCausalLM"), []
    timed = latency.time_models

    def watch(models, batch, rounds):
        seen.extend(one.config.use_cache for one in models)
        return timed(models, batch, rounds)

    monkeypatch.setattr(latency, "time_models", watch)
    espalier.measure(model, max_length=4, rounds=1)
    assert seen == [False]
    assert model.config.use_cache is True


def test_what_is_traced_is_not_what_is_compared():
    assert TRACED not in CHECKED
    assert len({length for _, length in CHECKED}) > 3
    model = tiny("bert")
    assert input_names(model, None) == ["input_ids", "attention_mask"]
    tokenizer = toys.tokenizer()
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    assert "token_type_ids" in input_names(model, tokenizer)
    with pytest.raises(UnsupportedError):
        input_names(tiny("t5", "AutoModelForSeq2SeqLM"), None)
    assert not are_equal([{"difference": float("nan")}])
    assert not are_equal([{"difference": 2 * TOLERANCE}])


def test_ranges():
    assert ranges_of("onnx", False, None, True) is None
    assert ranges_of("onnx", True, None, True) == "dynamic"
    assert ranges_of("openvino", True, None, True) == "static"
    assert ranges_of("openvino", True, None, False) == "dynamic"
    for given, parameter in (((False, "static", True), "ranges"), ((True, "static", False), "task")):
        with pytest.raises(InvalidValueError) as error:
            ranges_of("onnx", *given)
        assert error.value.parameter == parameter
    with pytest.raises(UnknownNameError):
        ranges_of("onnx", True, "none", True)


@pytest.mark.parametrize(
    ("to", "module"), [("onnx", "onnxruntime"), ("openvino", "openvino"), ("executorch", "executorch")]
)
def test_a_missing_package_names_its_extra(to, module, monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DependencyError) as error:
        espalier.export(tiny("bert"), tmp_path / "out", to=to)
    assert (error.value.package, error.value.extra) == (module, to)
    assert not (tmp_path / "out").exists()


def test_an_operator_that_the_target_lacks(monkeypatch, tmp_path):
    """Whatever an exporter raises, it is one sentence, and nothing is written."""
    from transformers.exporters import OnnxExporter

    def refuse(*_):
        raise RuntimeError("graph failed") from NotImplementedError("no decomposition for aten.unique2")

    monkeypatch.setattr(OnnxExporter, "export", refuse)
    with pytest.raises(UnsupportedError, match="unique2"):
        write_export(tiny("bert"), tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


def test_outputs_that_differ_are_not_shipped(monkeypatch, tmp_path):
    monkeypatch.setattr(onnx_file, "_trace", lambda *_, **how: None)
    monkeypatch.setattr(onnx_file, "open_file", lambda *_: OpenedFile(None, ["logits"]))
    monkeypatch.setattr(equality, "compare_outputs", lambda *_: [{"difference": 0.1}])
    with pytest.raises(UnsupportedError):
        write_export(tiny("bert"), tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


def test_a_model_whose_fused_graph_differs_is_exported_as_traced(monkeypatch, tmp_path):
    tried = []
    monkeypatch.setattr(onnx_file, "_trace", lambda *_, fuse: tried.append(fuse))
    monkeypatch.setattr(onnx_file, "open_file", lambda *_: OpenedFile(None, ["logits"]))
    monkeypatch.setattr(onnx_file, "count_fused", lambda _: {})
    monkeypatch.setattr(equality, "compare_outputs", lambda *_: [{"difference": 1.0 if tried[-1] else 0.0}])
    found = onnx_file.write_onnx(tiny("bert"), ["input_ids"], tmp_path / "m.onnx")
    assert tried == [True, False]
    assert found["refused"]


def test_attention_that_the_operator_cannot_do_is_refused():
    model = tiny("bert")
    with pytest.raises(UnsupportedError), fused_attention(model):
        raise NotImplementedError("softcap")
    assert model.config._attn_implementation == "sdpa"


def test_wrong_names_and_folders(tmp_path):
    with pytest.raises(UnknownNameError) as error:
        espalier.export(tiny("bert"), tmp_path / "out", to="onx")
    assert (error.value.nearest, error.value.parameter) == ("onnx", "to")
    (tmp_path / "empty").mkdir()
    for to in ("onnx", "openvino"):
        with pytest.raises(FolderError):
            espalier.export(tmp_path / "empty", tmp_path / "out", to=to)
    for how in ({"int8": True}, {"task": "demo"}):
        with pytest.raises(InvalidValueError):
            espalier.export(tiny("bert"), tmp_path / "out", to="plain", **how)
    with pytest.raises(InvalidValueError):
        espalier.export(tiny("bert"), tmp_path / "out", to="onnx", calibration=3)
    with pytest.raises(UnknownNameError):
        espalier.measure(tiny("bert"), engine="tensorrt")
    with pytest.raises(InvalidValueError):
        espalier.measure(tiny("bert"), max_length=[16, 65])
    with pytest.raises(InvalidValueError):
        espalier.measure(tiny("bert"), batch_size=[1, 0])
    assert not is_exported(tmp_path)
    whole = {
        "to": "onnx",
        "inputs": ["input_ids"],
        "counts": {"parameters": 1, "macs": 1, "tokens": 1},
        "bytes": 1,
    }
    damages = (
        {"to": ["onnx"]},
        {"to": "../m"},
        {"inputs": ["labels"]},
        {"counts": {}},
        {"bytes": "1"},
        {"positions": "x"},
        {},
    )
    for damage in damages:  # the last has no model file
        (tmp_path / "export.json").write_text(json.dumps(whole | damage))
        with pytest.raises(FormatError):
            open_exported(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"nothing of the kind")
    with pytest.raises(FormatError):
        open_exported(tmp_path)


def test_libraries_are_silenced_and_send_nothing(monkeypatch, capsys):
    import logging
    import os

    monkeypatch.delenv("CI", raising=False)
    with silenced():
        print("Run decompositions")
        logging.getLogger("torch.onnx").warning("torchvision is not installed")
        assert os.environ["CI"] == "true"
    assert "CI" not in os.environ
    assert capsys.readouterr() == ("", "")
    assert logging.getLogger("torch.onnx").isEnabledFor(logging.WARNING)


def test_openvino_that_differs_is_not_shipped(monkeypatch, tmp_path):
    monkeypatch.setattr(equality, "compare_outputs", lambda *_: [{"difference": 0.2}])
    monkeypatch.setattr(openvino_file, "open_file", lambda *_: OpenedFile(None, ["logits"]))
    import openvino
    from transformers.exporters import OpenVINOExporter

    made = openvino.Model([], [], "empty")
    monkeypatch.setattr(OpenVINOExporter, "export", lambda *_: made)
    monkeypatch.setattr(openvino, "save_model", lambda *_, **how: None)
    with pytest.raises(UnsupportedError):
        write_export(tiny("bert"), tmp_path / "out", "openvino")


def test_arrays_of_a_runtime_become_tensors():
    from transformers import BertConfig

    from espalier.exporters.exported import ExportedModel

    record = {"inputs": ["input_ids", "attention_mask", "token_type_ids"], "positions": 8}
    seen = []
    model = ExportedModel(
        lambda given: seen.append(given) or {"logits": np.zeros((1, 2))}, record, BertConfig()
    )
    assert model(input_ids=torch.ones(1, 3, dtype=torch.long)).logits.shape == (1, 2)
    assert seen[0]["attention_mask"].all()
    assert not seen[0]["token_type_ids"].any()


def test_an_output_that_is_nan_is_not_equal():
    model = tiny("bert", "AutoModelForSequenceClassification")

    def run(inputs):
        return {"logits": np.full((len(inputs["input_ids"]), model.config.num_labels), np.nan, np.float32)}

    found = compare_outputs(model, run, input_names(model, None))
    assert not are_equal(found)
    assert {one["difference"] for one in found} == {float("inf")}


def test_a_busy_machine_is_named():
    facts = {"threads": 2, "cores": 2}
    assert (
        disturbance({**facts, "others_running": 0.2}) == disturbance({**facts, "others_running": None}) == []
    )
    assert disturbance({"threads": 1, "cores": 2, "others_running": 1.0}) == []
    assert len(disturbance({**facts, "others_running": 1.0})) == 1
