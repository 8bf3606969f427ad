"""Exported language models go on from a cache: step by step they compute, and generate, what torch does."""

import json

import numpy as np
import pytest
import torch
from test_exporters import talkative, uneven

import espalier
from espalier.core.errors import (
    DependencyError,
    FolderError,
    FormatError,
    InvalidValueError,
    UnsupportedError,
)
from espalier.exporters import folder as folders
from espalier.exporters import runtime
from espalier.exporters.equality import GENERATED, STEPS, TOLERANCE, compare_generation, compare_steps
from espalier.exporters.exported import open_exported
from espalier.exporters.folder import write_export
from espalier.exporters.generation import Generator, open_generator
from espalier.exporters.past import Kept, caching, keeps_cache, kept_layers, positions_of
from espalier.exporters.runtime import OpenedFile
from espalier.exporters.sample import TRACED, traced_inputs
from espalier.testing.tiny import tiny

TEXT = ["input_ids", "attention_mask"]


def language_model(kind="llama", layers=3, **config):
    """Its layers have one group of heads, none, and all."""
    return uneven(talkative(tiny(kind, "AutoModelForCausalLM", num_hidden_layers=layers, **config)))


def prompts():
    """Two prompts, the first one shorter: padded on the left."""
    ids = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    return {"input_ids": ids, "attention_mask": mask}


def in_torch(model):
    """A file as a runtime would open it; here torch runs it."""
    layers = kept_layers(model)

    def infer(inputs, names):
        past = {str(i): {} for i in layers}
        given = {}
        for name, array in inputs.items():
            if name.startswith("past_key_values."):
                _, number, part = name.split(".")
                past[number][part] = torch.from_numpy(array)
            else:
                given[name] = torch.from_numpy(array)
        with caching(model, layers), torch.no_grad():
            out = model(**given, past_key_values=past)
        made = {"logits": out["logits"].numpy()}
        for number, layer in out["present"].items():
            made |= {f"present.{number}.{part}": value.numpy() for part, value in layer.items()}
        return {name: made[name] for name in names}

    parts = [
        (f"{i}.{part}", kept.heads, getattr(kept, part))
        for i, kept in layers.items()
        for part in Kept._fields[1:]
    ]
    outputs = ["logits", *(f"present.{name}" for name, *_ in parts)]
    return OpenedFile(infer, outputs, {f"past_key_values.{name}": tuple(size) for name, *size in parts})


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model, place = language_model(), tmp_path_factory.mktemp("text") / "lm"
    return model, place, espalier.export(model, place, to="onnx")


def test_keys_and_values_of_every_layer_with_heads(exported):
    import onnx

    _, place, record = exported
    assert (record["cache"], record["cache_refused"], record["refused"]) == (True, "", "")
    assert record["fused"]["MultiHeadAttention"] == 2
    assert [one["length"] for one in record["steps"]] == [*STEPS, *STEPS]
    assert max(one["difference"] for one in record["checked"] + record["steps"]) <= TOLERANCE
    assert 0 < record["generated"] <= 2 * GENERATED
    graph = onnx.load(place / "model.onnx").graph
    ports = {
        port.name: [d.dim_param or d.dim_value for d in port.type.tensor_type.shape.dim]
        for port in (*graph.input, *graph.output)
    }
    assert ports == {  # the second layer has no heads and keeps nothing
        "input_ids": ["batch", "length"],
        "attention_mask": ["batch", "total"],
        **{f"past_key_values.0.{part}": ["batch", 1, "past", 8] for part in ("key", "value")},
        **{f"past_key_values.2.{part}": ["batch", 3, "past", 8] for part in ("key", "value")},
        "logits": ["batch", "length", 64],
        **{f"present.0.{part}": ["batch", 1, "total", 8] for part in ("key", "value")},
        **{f"present.2.{part}": ["batch", 3, "total", 8] for part in ("key", "value")},
    }


def test_text_is_that_of_torch_until_it_ends(exported):
    """Padded on the left; a row that has ended is filled up."""
    model, place, _ = exported
    given = prompts()
    arrays = {name: value.numpy() for name, value in given.items()}
    plain = model.generate(**given, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    first, second = plain[:, 7:].tolist()
    end = next(token for token in first[2:] if token not in second)
    assert first.index(end) < 6
    assert len(set(second)) > 5
    wanted = model.generate(**given, max_new_tokens=12, do_sample=False, eos_token_id=end, pad_token_id=0)
    file = json.loads((place / "generation_config.json").read_text())
    assert (file["eos_token_id"], file["pad_token_id"]) == (2, 0)
    opened = open_generator(place)
    assert (set(opened.stop), opened.padding, opened.longest) == ({2}, 0, 64)
    found = Generator(opened.run, stop=[end], padding=0).generate(**arrays, max_new_tokens=12)
    assert found.tolist() == wanted.tolist()
    assert found.shape == (2, 19)
    assert found[0, 7 + first.index(end) + 1 :].max() == 0


def test_a_file_with_a_cache_reads_whole_sequences_too(exported):
    model, place, _ = exported
    given = prompts()
    out = open_exported(place)(**given)
    assert list(vars(out)) == ["logits"]
    positions = positions_of(given["attention_mask"])
    with torch.no_grad():
        wanted = model(**given, position_ids=positions).logits
    assert (out.logits - wanted)[given["attention_mask"].bool()].abs().max() <= TOLERANCE


def test_openvino_with_learned_positions(tmp_path):
    model = language_model("gpt2", layers=2)
    record = write_export(model, tmp_path / "lm", "openvino")
    assert (record["cache"], record["cache_refused"]) == (True, "")
    assert max(one["difference"] for one in record["steps"]) <= TOLERANCE
    given = prompts()
    wanted = model.generate(**given, max_new_tokens=6, do_sample=False)
    arrays = {name: value.numpy() for name, value in given.items()}
    assert open_generator(tmp_path / "lm").generate(**arrays, max_new_tokens=6).tolist() == wanted.tolist()


# ------------------------------------------------------------------------------------------ without tracing


@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt", "gpt_neox", "phi", "mistral", "qwen3"])
def test_what_is_traced_computes_what_torch_does(kind):
    model = language_model(kind)
    run = in_torch(model)
    assert "forward" not in vars(model)
    assert {name.split(".")[1] for name in run.past} == {"0", "2"}
    assert max(one["difference"] for one in compare_steps(model, run, TEXT)) <= TOLERANCE
    assert compare_generation(model, run, TEXT) == 2 * GENERATED
    traced = traced_inputs(model, TEXT, kept_layers(model))
    assert traced["input_ids"].shape == TRACED
    past = traced["past_key_values"]["2"]["key"].shape[2]
    assert traced["attention_mask"].shape == (TRACED[0], TRACED[1] + past)


def test_a_window_hides_tokens_that_the_cache_keeps():
    narrow, wide = (language_model("mistral", sliding_window=width) for width in (4, 64))
    assert max(one["difference"] for one in compare_steps(narrow, in_torch(narrow), TEXT)) <= TOLERANCE
    assert max(one["difference"] for one in compare_steps(wide, in_torch(narrow), TEXT)) > TOLERANCE


def test_token_types_are_those_of_the_first_part():
    """GPT-2 adds something for them, so that none and zeros are not the same."""
    model = language_model("gpt2")
    assert compare_generation(model, in_torch(model), [*TEXT, "token_type_ids"]) == 2 * GENERATED


def test_a_cache_that_is_wrong_is_seen():
    model = language_model()
    right = in_torch(model)

    def forget(inputs, names):
        given = {name: 0 * array if name.endswith("0.value") else array for name, array in inputs.items()}
        return right.infer(given, names)

    wrong = OpenedFile(forget, right.outputs, right.past)
    steps = compare_steps(model, wrong, TEXT)
    assert steps[0]["difference"] <= TOLERANCE  # there was nothing to forget yet
    assert max(one["difference"] for one in steps) > TOLERANCE
    with pytest.raises(UnsupportedError):
        compare_generation(
            model, OpenedFile(lambda *_: _shifted(right.infer(*_)), right.outputs, right.past), TEXT
        )


def _shifted(found):
    return {**found, "logits": np.roll(found["logits"], 1, axis=-1)}


def test_a_cache_that_cannot_be_exported_is_left_out(monkeypatch, tmp_path):
    """The model is still exported, and the record says why it has none."""
    tried = []

    def write(model, names, file, layers=None):
        tried.append(layers)
        if layers:
            raise KeyError("no such operator")
        file.write_bytes(b"model")
        return {"checked": [], "fused": {}, "refused": ""}

    monkeypatch.setitem(folders.WRITERS, "onnx", write)
    record = write_export(language_model(), tmp_path / "a", "onnx")
    assert (record["cache"], len(tried)) == (False, 2)
    assert "no such operator" in record["cache_refused"]
    assert tried[0] == {0: Kept(1, 8, 8), 2: Kept(3, 8, 8)}
    assert write_export(tiny("bert"), tmp_path / "b", "onnx")["cache_refused"] == ""
    assert not keeps_cache(tiny("bert", "AutoModelForSequenceClassification"))
    monkeypatch.setitem(folders.WRITERS, "executorch", write)
    monkeypatch.setattr(folders, "version", lambda _: "1")
    assert write_export(language_model(), tmp_path / "c", "executorch")["cache_refused"]
    assert tried[-1] is None


def test_prompts_that_cannot_be_read():
    generator = Generator(in_torch(language_model()), longest=8, largest_batch=1)
    ids = np.array([[5, 6, 7]])
    wrong = {
        "input_ids": [({"input_ids": ids[0]}, 1), ({"input_ids": np.repeat(ids, 2, 0)}, 1)],
        "attention_mask": [({"input_ids": ids, "attention_mask": np.array([[1, 1, 0]])}, 1)],
        "max_new_tokens": [({"input_ids": ids}, 0), ({"input_ids": ids}, 6)],
    }
    for parameter, cases in wrong.items():
        for given, more in cases:
            with pytest.raises(InvalidValueError) as error:
                generator.generate(**given, max_new_tokens=more)
            assert error.value.parameter == parameter
    assert generator.generate(ids, max_new_tokens=5).shape == (1, 8)


def test_cached_keys_have_fixed_heads():
    assert runtime._past_of({"input_ids": ["b", "t"], "past_key_values.0.key": ["b", 3, "p", 8]}) == {
        "past_key_values.0.key": (3, 8)
    }
    for shape in (["b", "heads", "p", 8], ["b", 3, 8], []):
        with pytest.raises(FormatError):
            runtime._past_of({"past_key_values.0.key": shape})


def test_folders_that_do_not_generate(exported, monkeypatch, tmp_path):
    import sys

    with pytest.raises(FolderError):
        open_generator(tmp_path)
    for record in ({"to": "onx", "inputs": ["input_ids"]}, {"to": "onnx"}, {"to": "onnx", "inputs": [1]}):
        (tmp_path / "export.json").write_text(json.dumps(record))
        with pytest.raises(FormatError):
            open_generator(tmp_path)
    (tmp_path / "export.json").write_text(json.dumps({"to": "onnx", "inputs": ["input_ids"]}))
    with pytest.raises(FolderError):  # a classifier has no generation_config.json
        open_generator(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DependencyError) as error:
        open_generator(exported[1])
    assert error.value.extra == "onnx"
    with pytest.raises(InvalidValueError) as error:  # nothing is said about the text to calibrate on
        espalier.export(exported[0], tmp_path / "out", to="onnx", int8=True, ranges="static")
    assert error.value.parameter == "task"
    with pytest.raises(InvalidValueError) as error:
        espalier.export(exported[0], tmp_path / "out", kv_cache=False)
    assert error.value.parameter == "kv_cache"


def test_padded_prompts_without_a_cache_are_read_one_by_one():
    """A file without a cache counts padding as positions; GPT-2 learns what each position means."""
    model = talkative(tiny("gpt2", "AutoModelForCausalLM", num_hidden_layers=2))

    def infer(inputs, names):
        with torch.no_grad():
            out = model(input_ids=torch.from_numpy(inputs["input_ids"]))
        return {"logits": out.logits.numpy()}

    given = prompts()
    wanted = model.generate(**given, max_new_tokens=6, do_sample=False, pad_token_id=0)
    found = Generator(OpenedFile(infer, ["logits"]), stop=[model.generation_config.eos_token_id]).generate(
        given["input_ids"].numpy(), given["attention_mask"].numpy(), max_new_tokens=6
    )
    assert found.tolist() == wanted.tolist()
