"""transformers after `import espalier`: it builds, loads and writes cut models as any others, or refuses."""

import copy
import json
import subprocess
import sys

import pytest
import torch
import toys
import transformers
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
from torch import nn

from espalier import Mask, TokenSchedule, cut, load, plan_of, prune_heads, save, set_schedule, sites
from espalier.core.errors import FormatError, UnsupportedError
from espalier.io.paths import CONFIG, MODELING
from espalier.pruning import skeleton
from espalier.storage.hook import attach, write_code
from espalier.testing.tiny import inputs, outputs, same, tiny, uneven

CLASSIFIER = "AutoModelForSequenceClassification"
TOPS = {
    "bert": CLASSIFIER,
    "gpt2": "AutoModelForCausalLM",
    "t5": "AutoModelForSeq2SeqLM",
    "deberta-v2": "AutoModel",
    "clip": "AutoModel",
    "whisper": "AutoModelForSpeechSeq2Seq",
}


@pytest.fixture
def small(bert):
    return cut(bert, uneven(sites(bert), 1), report=False)


def shapes(model):
    return {name: p.shape for name, p in model.named_parameters()}


def same_weights(a, b):
    assert shapes(a) == shapes(b)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters()))


@pytest.mark.parametrize("kind", TOPS)
def test_a_config_of_a_cut_model_builds_the_cut_shape(kind, tmp_path):
    """With weights that are drawn anew, and what it saves loads again."""
    auto = getattr(transformers, TOPS[kind])
    model = tiny(kind, TOPS[kind])
    cut(model, uneven(sites(model), 2), report=False)
    new = auto.from_config(model.config).eval()
    assert shapes(new) == shapes(model)
    assert all(p.isfinite().all() for p in new.parameters())
    assert plan_of(new).keep == plan_of(model).keep
    new.save_pretrained(tmp_path)
    again = auto.from_pretrained(tmp_path)
    same_weights(new, again)
    same(outputs(again, inputs(model)), outputs(new, inputs(model)), "built", exact=True)
    assert shapes(type(model)(copy.deepcopy(model.config))) == shapes(model)


def test_weights_of_a_model_with_the_config_of_another_are_not_saved(bert, tmp_path):
    other = type(bert)(bert.config)  # one config object for both
    prune_heads(bert, {0: [1]})
    for write in (other.save_pretrained, lambda folder: save(other, folder)):
        with pytest.raises(UnsupportedError):
            write(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_accelerate_loads_a_folder_into_an_empty_model(small, tmp_path):
    save(small, tmp_path / "m")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "m")
    with init_empty_weights():
        empty = transformers.AutoModelForSequenceClassification.from_config(config)
    full = load_checkpoint_and_dispatch(empty, tmp_path / "m", device_map={"": "cpu"}).eval()
    same(outputs(full, inputs(small)), outputs(small, inputs(small)), "dispatched", exact=True)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_new_head_is_drawn_for_another_number_of_labels(small, tmp_path, sparse):
    save(small, tmp_path / "m", sparse=sparse)
    auto = transformers.AutoModelForSequenceClassification
    with pytest.raises(RuntimeError):
        auto.from_pretrained(tmp_path / "m", num_labels=5)
    model, info = auto.from_pretrained(
        tmp_path / "m", num_labels=5, ignore_mismatched_sizes=True, output_loading_info=True
    )
    assert {name for name, *_ in info["mismatched_keys"]} == {"classifier.weight", "classifier.bias"}
    assert model.classifier.weight.shape == (5, 48)
    assert 0.01 < model.classifier.weight.std() < 0.03  # as the config says, 0.02
    assert model.classifier.weight.requires_grad
    same_weights(model.bert, small.bert)
    model.save_pretrained(tmp_path / "five")
    same_weights(auto.from_pretrained(tmp_path / "five"), model)


def test_towers_load_from_the_folder_of_both(tmp_path):
    both = tiny("clip")
    cut(both, uneven(sites(both), 2), report=False)
    save(both, tmp_path / "m")
    for name, part in (("CLIPTextModel", both.text_model), ("CLIPVisionModel", both.vision_model)):
        for cls in (name, f"{name}WithProjection"):
            tower, info = getattr(transformers, cls).from_pretrained(tmp_path / "m", output_loading_info=True)
            assert not info["missing_keys"]
            assert not info["mismatched_keys"]
            loaded = tower if cls == name else tower.base_model
            loaded = getattr(loaded, "text_model", getattr(loaded, "vision_model", loaded))
            same_weights(loaded, part)
    tower = transformers.CLIPTextModel.from_pretrained(tmp_path / "m")
    ids = torch.arange(8)[None]
    assert torch.equal(tower(ids).last_hidden_state, both.text_model(ids).last_hidden_state)
    save(tower, tmp_path / "tower")
    same_weights(load(tmp_path / "tower"), tower)


def test_transformers_5_18(tmp_path, monkeypatch):
    """Towers that do not name their base model, and a loader that is not told the model."""
    from transformers.quantizers.base import HfQuantizer

    both = tiny("clip")
    cut(both, uneven(sites(both), 2), report=False)
    save(both, tmp_path / "m")
    monkeypatch.setattr(transformers.CLIPTextModelWithProjection, "base_model_prefix", "clip")
    tower = transformers.CLIPTextModelWithProjection.from_pretrained(tmp_path / "m")
    same_weights(tower.text_model, both.text_model)
    monkeypatch.setattr(HfQuantizer, "update_weight_conversions", lambda self, found: found)
    loader = transformers.quantizers.auto.AUTO_QUANTIZER_MAPPING["espalier"]
    record = vars(transformers.AutoConfig.from_pretrained(tmp_path / "m"))["quantization_config"]
    assert loader(record).update_weight_conversions([1]) == [1]


def composite(kind):
    decoder = tiny("bert", "AutoModelForCausalLM", is_decoder=True, add_cross_attention=True)
    cls = transformers.VisionEncoderDecoderModel if kind == "vit" else transformers.EncoderDecoderModel
    return cls(encoder=tiny(kind), decoder=decoder)


@pytest.mark.parametrize("kind", ["bert", "vit"])
@pytest.mark.parametrize("parts", ["encoder", "decoder", "both"])
def test_a_composite_model_of_cut_parts_is_saved_and_loaded(kind, parts, tmp_path):
    model = composite(kind)
    for part in ("encoder", "decoder"):
        if parts in (part, "both"):
            prune_heads(getattr(model, part), {0: [1]})
    model.save_pretrained(tmp_path / "a")
    save(model, tmp_path / "b")
    same_weights(type(model).from_pretrained(tmp_path / "a"), model)
    again = load(tmp_path / "b")
    same_weights(again, model)
    again.save_pretrained(tmp_path / "c")
    same_weights(type(model).from_pretrained(tmp_path / "c"), model)
    ids = torch.arange(6)[None]
    seen = {"pixel_values": torch.rand(1, 3, 16, 16)} if kind == "vit" else {"input_ids": ids}
    with torch.no_grad():
        found = [m.eval()(**seen, decoder_input_ids=ids).logits for m in (again, model)]
    assert torch.equal(*found)


def test_a_part_that_the_config_does_not_contain_is_refused(bert, tmp_path):
    class Pair(transformers.BertPreTrainedModel):
        def __init__(self, config, part):
            super().__init__(config)
            self.part = part
            self.post_init()

    prune_heads(bert, {0: [1]})
    pair = Pair(transformers.BertConfig(), bert)
    for write in (pair.save_pretrained, lambda folder: save(pair, folder)):
        with pytest.raises(UnsupportedError):
            write(tmp_path / "m")


def test_save_pretrained_writes_the_code_that_loads_it(small, tmp_path):
    """As Trainer calls it."""
    transformers.Trainer(model=small, args=transformers.TrainingArguments(tmp_path / "t")).save_model(
        tmp_path / "a"
    )
    small.save_pretrained(tmp_path / "b", max_shard_size="40KB")
    save(small, tmp_path / "c")
    codes = [(tmp_path / name / MODELING).read_text() for name in "abc"]
    assert codes == codes[:1] * 3
    configs = [json.loads((tmp_path / name / CONFIG).read_text()) for name in "abc"]
    assert configs == configs[:1] * 3
    assert configs[0]["auto_map"][CLASSIFIER] == "modeling_espalier.BertForSequenceClassification"
    tiny("bert").save_pretrained(tmp_path / "whole")
    assert not (tmp_path / "whole" / MODELING).exists()


ALONE = """
import sys
sys.modules["espalier"] = None
import torch, transformers
place, ids = sys.argv[1], torch.arange(8)[None]
Auto, refused = transformers.AutoModelForSequenceClassification, 0
for cls, folder in (
    (Auto, "m"), (transformers.BertModel, "m"), (Auto, "trained"), (Auto, "sparse"),
    (transformers.CLIPTextModel, "clip"), (transformers.EncoderDecoderModel, "both"),
):
    try:
        cls.from_pretrained(f"{place}/{folder}", ignore_mismatched_sizes=True)
    except ValueError as error:
        refused += "import espalier" in str(error) and "trust_remote_code" in str(error)
print(refused)
for folder in ("m", "trained"):
    print(Auto.from_pretrained(f"{place}/{folder}", trust_remote_code=True)(ids).logits.tolist())
answer = transformers.pipeline("text-classification", f"{place}/m", trust_remote_code=True)
print(answer("ba be bi"))
five = Auto.from_pretrained(f"{place}/m", trust_remote_code=True, num_labels=5, ignore_mismatched_sizes=True)
query = five.bert.encoder.layer[0].attention.self.query
print(tuple(five.classifier.weight.shape), tuple(query.weight.shape))
both = transformers.AutoModelForSeq2SeqLM.from_pretrained(f"{place}/both", trust_remote_code=True)
both.save_pretrained(f"{place}/again")
print(both(input_ids=ids, decoder_input_ids=ids).logits.sum().item())
"""


def test_without_espalier_a_folder_loads_by_its_code_or_not_at_all(small, tmp_path):
    """Never as a model with random weights, whatever sizes may differ."""
    save(small, tmp_path / "m", tokenizer=toys.tokenizer())
    small.save_pretrained(tmp_path / "trained")
    save(small, tmp_path / "sparse", sparse=True)
    clip, both = tiny("clip"), composite("bert").eval()
    cut(clip, uneven(sites(clip), 2), report=False)
    save(clip, tmp_path / "clip")
    prune_heads(both.encoder, {0: [1]})
    both.save_pretrained(tmp_path / "both")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    refused, saved, trained, answer, five, total = done.stdout.splitlines()[-6:]
    ids = torch.arange(8)[None]
    assert refused == "6"
    assert json.loads(saved) == json.loads(trained) == small(ids).logits.tolist()
    here = transformers.pipeline("text-classification", str(tmp_path / "m"))("ba be bi")
    assert repr(here) == answer
    assert five == f"(5, 48) {tuple(small.bert.encoder.layer[0].attention.self.query.weight.shape)}"
    assert float(total) == both(input_ids=ids, decoder_input_ids=ids).logits.sum().item()
    same_weights(transformers.EncoderDecoderModel.from_pretrained(tmp_path / "again"), both)


FIRST_THE_FOLDER = """
import sys, transformers
sys.modules["espalier"] = None
place, Auto = sys.argv[1], transformers.AutoModelForSequenceClassification
Auto.from_pretrained(f"{place}/m", trust_remote_code=True)
del sys.modules["espalier"]
import espalier
from espalier.engine.token_places import dropper_of
print(dropper_of(Auto.from_pretrained(f"{place}/tokens")).schedule.values)
"""


def test_espalier_imported_after_the_code_of_a_folder_restores_token_schedules(small, tmp_path):
    save(small, tmp_path / "m")
    layers = small.config.num_hidden_layers
    save(set_schedule(small, TokenSchedule("top", (0.5,) * layers)), tmp_path / "tokens")
    done = subprocess.run(
        [sys.executable, "-c", FIRST_THE_FOLDER, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == str((0.5,) * layers)


@pytest.mark.parametrize("value", [True, -1, "3", 2.0, None])
def test_a_skeleton_counts_in_whole_numbers(small, value):
    record = copy.deepcopy(small.config.quantization_config)
    skeleton.check(record)
    name = next(iter(record["skeleton"]["attributes"]))
    record["skeleton"]["attributes"][name] = value
    with pytest.raises(ValueError, match="attributes"):
        skeleton.check(record)


def test_a_saved_model_names_the_versions_it_was_made_with(small, tmp_path):
    save(small, tmp_path / "m")
    origin = json.loads((tmp_path / "m" / "plan.json").read_text())["origin"]
    assert origin["transformers"] == transformers.__version__
    assert origin["torch"] == torch.__version__
    assert (origin["model_type"], origin["class"]) == ("bert", "BertForSequenceClassification")


@pytest.mark.parametrize("value", [5, "ab", [1, 2, 3], [-1], [True, 2], [2.0], None])
def test_a_skeleton_has_shapes_of_at_most_two_sizes(small, value):
    record = copy.deepcopy(small.config.quantization_config)
    record["skeleton"]["shapes"][next(iter(record["skeleton"]["shapes"]))] = value
    with pytest.raises(ValueError, match="shapes"):
        skeleton.check(record)


def test_a_damaged_record_is_found_in_the_config_before_weights_are_read(small, tmp_path):
    folder = save(small, tmp_path / "m")
    config = json.loads((folder / CONFIG).read_text())
    config["quantization_config"]["skeleton"]["attributes"] = 1
    (folder / CONFIG).write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    with pytest.raises(FormatError) as error:
        load(folder)
    assert error.value.path == folder / CONFIG


def test_an_index_that_lists_files_outside_the_folder_is_refused(small, tmp_path):
    folder = save(small, tmp_path / "m", max_shard_size="20kB")
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    first = sorted(set(table["weight_map"].values()))[0]
    (folder / first).rename(tmp_path / first)
    table["weight_map"] = {n: f"../{v}" if v == first else v for n, v in table["weight_map"].items()}
    index.write_text(json.dumps(table))
    with pytest.raises(FormatError) as error:
        load(folder)
    assert error.value.path == index


def test_a_class_of_the_users_own_is_no_way_around_it(small, tmp_path):
    folder = save(small, tmp_path / "m")
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, "architectures": ["Theirs"]}))
    same_weights(load(folder, cls=type(small)), small)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(FormatError) as error:
        load(folder, cls=type(small))
    assert error.value.path == weights


@pytest.mark.parametrize("copies", [1, [], {"a": 1}, {"a": None}])
def test_a_skeleton_names_what_it_copies(small, copies):
    record = copy.deepcopy(small.config.quantization_config)
    record["skeleton"]["copies"] = copies
    with pytest.raises(ValueError, match="copies"):
        skeleton.check(record)


def test_a_skeleton_of_a_weight_that_is_not_there_says_so(small):
    record = copy.deepcopy(small.config.quantization_config)
    name = next(iter(record["skeleton"]["shapes"])).rpartition(".")[0]
    record["skeleton"]["shapes"][f"{name}.nothing"] = [3]
    model = tiny("bert", CLASSIFIER)
    with pytest.raises(ValueError, match="nothing has size None"):
        skeleton.put_on(model, record)


def test_transformers_is_wrapped_once(monkeypatch):
    base, restored = transformers.PreTrainedModel, []
    before = (base.post_init, base.save_pretrained, transformers.PreTrainedConfig.save_pretrained)
    known = getattr(base.post_init, "espalier")  # noqa: B009
    monkeypatch.setitem(known, "a_key", restored.clear)  # taken out again after the test
    attach(lambda classes: "", more={"a_key": restored.append})
    assert before == (base.post_init, base.save_pretrained, transformers.PreTrainedConfig.save_pretrained)
    assert known["a_key"] == restored.append


def test_a_model_with_an_adapter_is_not_saved(small, tmp_path):
    small._hf_peft_config_loaded = True
    with pytest.raises(UnsupportedError, match="adapter"):
        save(small, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_model_of_all_dtypes_comes_back(small, tmp_path):
    kinds = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
    for layer, dtype in zip(small.bert.encoder.layer, kinds[1:]):
        layer.to(dtype)
    small.classifier.to(torch.float64)
    again = load(save(small, tmp_path / "m"))
    assert {p.dtype for p in again.parameters()} == set(kinds)
    same_weights(again, small)


def test_nothing_of_a_quantized_model_is_left_after_loading(small, tmp_path):
    model = transformers.AutoModelForSequenceClassification.from_pretrained(save(small, tmp_path / "m"))
    marks = ("hf_quantizer", "quantization_method", "is_quantized")
    assert not set(marks) & set(vars(model))
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    assert configs
    assert not any({"_is_quantized", "transformers_weights"} & set(vars(config)) for config in configs)


def test_a_part_that_was_cut_in_a_quantized_model_is_not_written(small, tmp_path):
    record = small.config.quantization_config
    config = {"encoder": {"quantization_config": record}, "quantization_config": {"quant_method": "bnb"}}
    (tmp_path / CONFIG).write_text(json.dumps(config))
    with pytest.raises(ValueError, match="quantized"):
        write_code(tmp_path, lambda classes: "")
    del config["quantization_config"]
    (tmp_path / CONFIG).write_text(json.dumps(config))
    write_code(tmp_path, lambda classes: "")
    written = json.loads((tmp_path / CONFIG).read_text())
    assert written["quantization_config"] == skeleton.empty_record()


def test_the_code_of_others_stays_in_the_config(small, tmp_path):
    folder = save(small, tmp_path / "m")
    (folder / MODELING).unlink()
    config = json.loads((folder / CONFIG).read_text())
    own = {"AutoModel": "modeling_theirs.Theirs"}
    (folder / CONFIG).write_text(json.dumps({**config, "auto_map": own}))
    write_code(folder, lambda classes: "ours")
    assert json.loads((folder / CONFIG).read_text())["auto_map"] == own
    assert not (folder / MODELING).exists()
    del config["auto_map"]
    (folder / CONFIG).write_text(json.dumps(config))
    write_code(folder, lambda classes: "ours")
    written = json.loads((folder / CONFIG).read_text())["auto_map"]
    assert written["AutoModelForSequenceClassification"] == "modeling_espalier.BertForSequenceClassification"
    assert (folder / MODELING).read_text() == "ours"


def test_a_local_config_keeps_what_was_set_and_can_be_copied():
    model = tiny("gpt_neox")
    shared = model.config
    holder = model.layers[0].attention
    before = (shared.num_attention_heads, shared.hidden_size)
    for name, value in (("num_attention_heads", 3), ("hidden_size", 7)):
        skeleton.set_attribute(model, f"layers.0.attention.config.{name}", value)
    assert (holder.config.num_attention_heads, holder.config.hidden_size) == (3, 7)
    assert (shared.num_attention_heads, shared.hidden_size) == before
    assert holder.config.vocab_size == shared.vocab_size
    twin = copy.deepcopy(holder.config)
    assert (twin.num_attention_heads, twin.hidden_size, twin.vocab_size) == (3, 7, shared.vocab_size)
    with pytest.raises(AttributeError):
        skeleton.LocalConfig.__new__(skeleton.LocalConfig).anything  # noqa: B018


def test_a_tower_of_a_cut_model_is_loaded_alone(tmp_path):
    model = tiny("clip")
    cut(model, uneven(sites(model), 2), report=False)
    folder = save(model, tmp_path / "m")
    for kind, part in (("CLIPTextModel", "text_model"), ("CLIPVisionModel", "vision_model")):
        alone = getattr(transformers, kind).from_pretrained(folder)
        whole = {n.removeprefix(f"{part}."): p for n, p in model.named_parameters() if n.startswith(part)}
        found = {n.removeprefix(f"{part}."): p for n, p in alone.named_parameters()}
        assert found.keys() == whole.keys()
        assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_modernbert_without_its_first_block_comes_back(tmp_path):
    """Only the first block is built without a norm; the one that is first now has one."""
    model = tiny("modernbert")
    whole = sites(model, "layers")
    cut(model, Mask.without(whole, {whole[0].name: [0]}), report=False)
    assert model.config.quantization_config["skeleton"]["copies"]
    again = load(save(model, tmp_path / "m"))
    same_weights(again, model)
    same(outputs(again, inputs(model)), outputs(model, inputs(model)), "modernbert", exact=True)


def test_a_layer_of_bloom_without_heads_comes_back(tmp_path):
    """What is left of its attention adds the residual after dropout, whose rate is an attribute."""
    model = tiny("bloom", "AutoModelForCausalLM")
    prune_heads(model, {0: range(sites(model, "heads")[0].units)})
    again = load(save(model, tmp_path / "m"))
    same(outputs(again, inputs(model)), outputs(model, inputs(model)), "bloom", exact=True)


# ------------------------------------------------------------------------------------- quantised models


class Quantised(torch.Tensor):
    """A weight as torchao and optimum-quanto have it: of another type, and it computes like a float one."""

    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)

    def __init__(self, data):
        self.scale = data.abs().amax() / 127
        self.data_ = (data / self.scale).round().to(torch.int8)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return args[0]
        plain = [a.data_ * a.scale if isinstance(a, cls) else a for a in args]
        return func(*plain, **(kwargs or {}))


class QLinear(nn.Linear):
    """As optimum.quanto.nn has it before it is frozen."""

    __module__ = "optimum.quanto.nn.qlinear"


def freeze(linear):
    linear.weight = nn.Parameter(Quantised(linear.weight.data))


def eight_bits(linear):
    linear.weight = nn.Parameter(linear.weight.data.to(torch.int8), requires_grad=False)


def replace(linear):
    linear.__class__ = QLinear


@pytest.mark.parametrize("quantise", [freeze, eight_bits, replace])
def test_a_quantised_model_is_not_cut(bert, tmp_path, quantise):
    for layer in bert.bert.encoder.layer:
        quantise(layer.intermediate.dense)
    with pytest.raises(UnsupportedError):
        prune_heads(bert, {0: [1]})
    with pytest.raises(UnsupportedError):
        save(bert, tmp_path / "m")
    assert [s.units for s in sites(bert, "heads")] == [6, 6, 6]
