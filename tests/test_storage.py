import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
from safetensors import safe_open

import espalier
from espalier import EspalierError, Mask, Plan, cut, export, load, plan_of, prune_heads, save, sites
from espalier.core.errors import FolderError, FormatError, UnsupportedError
from espalier.testing.tiny import inputs, outputs, same, tiny, uneven


@pytest.fixture
def small(bert):
    return cut(bert, uneven(sites(bert), 1), report=False)


def weights(folder):
    return next(folder.glob("*.safetensors"))


def edit_config(folder, change):
    raw = json.loads((folder / "config.json").read_text())
    change(raw)
    (folder / "config.json").write_text(json.dumps(raw))


def test_what_a_folder_holds(small, tmp_path):
    save(small, tmp_path / "m", origin={"by": "hand"})
    names = {p.name for p in (tmp_path / "m").iterdir()}
    assert {"config.json", "model.safetensors", "plan.json", "modeling_espalier.py"} <= names
    plan = json.loads((tmp_path / "m" / "plan.json").read_text())
    assert plan["version"] == 1
    assert plan["origin"]["espalier"] == espalier.__version__
    assert plan["origin"]["by"] == "hand"
    assert plan["origin"]["class"] == "BertForSequenceClassification"
    assert Plan.load(tmp_path / "m" / "plan.json").keep == plan_of(small).keep
    with safe_open(weights(tmp_path / "m"), "pt") as file:  # nothing but what is left is on the disk
        stored = sum(file.get_tensor(k).numel() for k in file.keys())  # noqa: SIM118
    assert stored == sum(p.numel() for p in small.parameters())


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_files_are_as_open_as_the_umask_says(small, tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        save(small, tmp_path / "m")
    finally:
        os.umask(before)
    modes = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "m").iterdir()}
    assert modes == dict.fromkeys(modes, mode)
    assert "model.safetensors" in modes


def test_an_uncut_model_is_saved_too(bert, tmp_path):
    save(bert, tmp_path / "m")
    same(
        outputs(load(tmp_path / "m"), inputs(bert)),
        outputs(bert, inputs(bert)),
        "uncut",
        exact=True,
    )


def test_a_loaded_model_is_cut_again(small, tmp_path):
    save(small, tmp_path / "m")
    again = load(tmp_path / "m")
    for model in (small, again):
        prune_heads(model, {2: [0]})
    assert plan_of(again).keep == plan_of(small).keep
    same(outputs(again, inputs(small)), outputs(small, inputs(small)), "cut on", exact=True)
    save(again, tmp_path / "m")
    same(
        outputs(load(tmp_path / "m"), inputs(small)),
        outputs(small, inputs(small)),
        "again",
        exact=True,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_come_back(small, tmp_path, dtype):
    save(small.to(dtype), tmp_path / "m")
    again = load(tmp_path / "m")
    assert {p.dtype for p in again.parameters()} == {dtype}
    assert all(torch.equal(a, b) for a, b in zip(small.parameters(), again.parameters()))


def test_mixed_dtypes_come_back(small, tmp_path):
    small.to(torch.bfloat16)
    small.classifier.to(torch.float32)
    with torch.no_grad():
        small.classifier.weight.add_(1e-5)  # nothing that bfloat16 could hold
    save(small, tmp_path / "m")
    again = load(tmp_path / "m")
    for (name, a), (_, b) in zip(small.named_parameters(), again.named_parameters()):
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), name


def test_shards(tmp_path):
    model = tiny("gpt2", "AutoModelForCausalLM")
    cut(model, uneven(sites(model), 0), report=False)
    save(model, tmp_path / "m", max_shard_size="40KB")
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 1
    again = load(tmp_path / "m")
    same(outputs(again, inputs(model)), outputs(model, inputs(model)), "sharded", exact=True)
    assert again.lm_head.weight is again.transformer.wte.weight


def test_the_unpruned_model_is_never_allocated(tmp_path):
    """Loading a model cut to almost nothing takes far less memory than the unpruned one has."""
    model = tiny("bert", hidden_size=384, num_attention_heads=6, intermediate_size=49152)
    mask = Mask.ones(sites(model, "neurons"))
    for m in mask.values():
        m[16:] = False
    full = sum(p.numel() * 4 for p in model.parameters())
    save(cut(model, mask, report=False), tmp_path / "m")
    code = (
        "import re, sys, transformers\n"
        "from espalier import load\n"
        "def peak():\n"
        "    return int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "load(sys.argv[1])\n"  # once, so that every library is in memory
        "before = peak()\n"
        "load(sys.argv[1])\n"
        "print(peak() - before)\n"
        "transformers.BertModel(transformers.BertConfig.from_pretrained(sys.argv[1]))\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "m"], capture_output=True, text=True, check=True
    )
    loading, building = (1024 * int(line) for line in done.stdout.split())
    assert building > full / 2  # the yardstick works: building the unpruned one is seen
    assert loading < full / 10


def test_tokenizer_goes_along(small, tmp_path):
    tokenizer = transformers.BertTokenizer(vocab={w: i for i, w in enumerate(["[PAD]", "[UNK]", "a"])})
    save(small, tmp_path / "m", tokenizer=tokenizer)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "m")("a")["input_ids"]


# ------------------------------------------------------------------------------------------ stock loading


@pytest.mark.parametrize("kind", ["bert", "t5", "gpt2", "vit"])
def test_a_folder_loads_without_espalier(kind, tmp_path):
    """A machine with transformers only: trust_remote_code=True loads the cut model."""
    tops = {"bert": "AutoModelForSequenceClassification", "t5": "AutoModelForSeq2SeqLM"}
    tops |= {"gpt2": "AutoModelForCausalLM", "vit": "AutoModelForImageClassification"}
    model = tiny(kind, tops[kind])
    cut(model, uneven(sites(model), 2), report=False)
    save(model, tmp_path / "m")
    given = inputs(model)
    safetensors.torch.save_file({k: v for k, v in given.items() if torch.is_tensor(v)}, tmp_path / "in")
    # A new environment that sees the installed packages but not espalier: folders on PYTHONPATH are not
    # searched for .pth files, which is how an editable install makes itself known.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    site = Path(torch.__file__).parents[1]
    assert not (site / "espalier").exists(), "installed, not editable: this test would see it"
    code = f"""
import importlib.util, sys, torch, transformers, safetensors.torch
assert importlib.util.find_spec("espalier") is None
torch.set_num_threads(1)
try:
    transformers.{tops[kind]}.from_pretrained({str(tmp_path / "m")!r}, trust_remote_code=False)
except (RuntimeError, ValueError):
    pass
else:
    raise SystemExit("a plain load without espalier must not quietly give another model")
model = transformers.{tops[kind]}.from_pretrained({str(tmp_path / "m")!r}, trust_remote_code=True)
with torch.no_grad():
    out = model(**safetensors.torch.load_file({str(tmp_path / "in")!r})).logits
safetensors.torch.save_file({{"out": out.contiguous()}}, {str(tmp_path / "out")!r})
model.save_pretrained({str(tmp_path / "again")!r})
again = transformers.{tops[kind]}.from_pretrained({str(tmp_path / "again")!r}, trust_remote_code=True)
assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
"""
    env = {
        **os.environ,
        "PYTHONPATH": str(site),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-c", code],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    want = outputs(model, {k: v for k, v in given.items() if torch.is_tensor(v)})[0]
    got = safetensors.torch.load_file(tmp_path / "out")["out"]
    same([got], [want], "without espalier", exact=True)


def test_stock_loading_gives_an_ordinary_model(small, tmp_path):
    save(small, tmp_path / "m")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
    assert not getattr(model, "is_quantized", False)
    assert getattr(model, "hf_quantizer", None) is None
    model.to(torch.bfloat16).train()  # a quantised model would refuse
    assert sum(p.requires_grad for p in model.parameters()) == len(list(model.parameters()))
    base = transformers.AutoModel.from_pretrained(tmp_path / "m")  # another class on the same blocks
    assert [s.units for s in sites(base)] == [s.units for s in sites(small)]


# ------------------------------------------------------------------------------------------ plain export


def even(model, target, keep):
    mask = Mask.ones(sites(model, target))
    for i, m in enumerate(mask.values()):
        m[torch.randperm(m.numel(), generator=torch.Generator().manual_seed(i))[keep:]] = False
    return mask


@pytest.mark.parametrize("kind", ["llama", "qwen3", "vit", "phi3", "gemma2"])
def test_plain_export_of_evenly_cut_heads_and_neurons(kind, tmp_path):
    top = "AutoModelForImageClassification" if kind == "vit" else "AutoModelForCausalLM"
    model = tiny(kind, top)
    cut(model, Mask({**even(model, "heads", 2), **even(model, "neurons", 24)}), report=False)
    export(model, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert "quantization_config" not in config
    assert "auto_map" not in config
    plain = getattr(transformers, top).from_pretrained(tmp_path / "m")
    assert plan_of(plain).keep == {}
    same(outputs(plain, inputs(model)), outputs(model, inputs(model)), "plain", exact=True)
    assert plan_of(model).keep  # the model in memory keeps its plan


@pytest.mark.parametrize("kind", ["bert", "gpt2", "bart", "t5", "modernbert", "opt", "distilbert"])
def test_plain_export_of_evenly_cut_neurons(kind, tmp_path):
    model = tiny(kind)
    cut(model, even(model, "neurons", 24), report=False)
    export(model, tmp_path / "m")
    plain = transformers.AutoModel.from_pretrained(tmp_path / "m")
    same(outputs(plain, inputs(model)), outputs(model, inputs(model)), "plain", exact=True)


def test_plain_export_refuses_what_a_config_cannot_describe(bert, tmp_path):
    uneven_, empty = tiny("llama"), tiny("vit")
    prune_heads(uneven_, {0: [1]})
    cut(empty, even(empty, "heads", 0), report=False)
    for model in (uneven_, empty, cut(bert, even(bert, "heads", 2), report=False)):
        with pytest.raises(UnsupportedError):
            export(model, tmp_path / "m")
    assert not (tmp_path / "m").exists()


# ------------------------------------------------------------------------------------------ wrong input


def test_folders_that_are_not_ours(bert, tmp_path):
    bert.save_pretrained(tmp_path / "stock")
    (tmp_path / "empty").mkdir()
    for name in ("none", "empty", "stock"):
        with pytest.raises(FolderError) as error:
            load(tmp_path / name)
        assert error.value.path == tmp_path / name


def damage(what):
    def truncate(folder):
        data = weights(folder).read_bytes()
        weights(folder).write_bytes(data[: len(data) // 2])

    def garbage(folder):
        weights(folder).write_bytes(b"\x00" * 100)

    def missing(folder):
        weights(folder).unlink()

    def future(folder):
        plan = json.loads((folder / "plan.json").read_text())
        (folder / "plan.json").write_text(json.dumps({**plan, "version": 7}))

    def other_plan(folder):
        plan = json.loads((folder / "plan.json").read_text())
        plan["keep"]["encoder.layer.0/heads"] = "0"
        (folder / "plan.json").write_text(json.dumps(plan))

    def config(folder):
        (folder / "config.json").write_text("{")

    def other_weights(folder):
        tensors = safetensors.torch.load_file(weights(folder))
        tensors.pop("classifier.weight")
        safetensors.torch.save_file(tensors, weights(folder), {"format": "pt"})

    def wider(folder):
        def change(raw):
            shapes = raw["quantization_config"]["skeleton"]["shapes"]
            shapes[next(iter(shapes))] = [10**9, 48]

        edit_config(folder, change)

    return locals()[what]


@pytest.mark.parametrize(
    ("what", "file"),
    [
        ("truncate", "model.safetensors"),
        ("garbage", "model.safetensors"),
        ("missing", ""),
        ("future", None),
        ("other_plan", "plan.json"),
        ("config", "config.json"),
        ("other_weights", ""),
        ("wider", ""),
    ],
)
def test_damaged_folders(small, tmp_path, what, file):
    save(small, tmp_path / "m")
    damage(what)(tmp_path / "m")
    with pytest.raises(FormatError) as error:
        load(tmp_path / "m")
    assert file is None or error.value.path == tmp_path / "m" / file


def test_a_class_that_transformers_does_not_have(small, tmp_path):
    save(small, tmp_path / "m")
    edit_config(tmp_path / "m", lambda raw: raw.update(architectures=["os.system"]))
    with pytest.raises(UnsupportedError):
        load(tmp_path / "m")
    assert plan_of(load(tmp_path / "m", cls=type(small))).keep == plan_of(small).keep


def test_a_failed_save_leaves_the_old_one(small, tmp_path, monkeypatch):
    save(small, tmp_path / "m")
    want = outputs(small, inputs(small))
    before = sorted(p.name for p in tmp_path.iterdir())

    def full(self, place, **_):
        (Path(place) / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(small), "save_pretrained", full)
    with pytest.raises(FolderError):
        save(small, tmp_path / "m")
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.iterdir()) == before  # no temporary folder is left
    same(outputs(load(tmp_path / "m"), inputs(small)), want, "the old one", exact=True)


def test_a_really_full_disk(tmp_path):
    """A write that the system cuts off, as a full disk would: safetensors' own error, not Python's."""
    model = tiny("bert", hidden_size=96, intermediate_size=4096)
    prune_heads(model, {0: [0]})
    code = (
        "import resource, signal, sys, espalier\n"
        "from espalier.testing.tiny import tiny\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "model = espalier.prune_heads(tiny('bert', hidden_size=96, intermediate_size=4096), {0: [0]})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n"
        "try:\n"
        "    espalier.save(model, sys.argv[1])\n"
        "except espalier.EspalierError as error:\n"
        "    print('refused', error.path)\n"
    )
    save(model, tmp_path / "m")
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "m"], capture_output=True, text=True, check=False
    )
    assert f"refused {tmp_path / 'm'}" in done.stdout, done.stdout + done.stderr[-2000:]
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    load(tmp_path / "m")


def test_places_that_cannot_be_written(small, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "photos"):
        with pytest.raises(FolderError) as error:
            save(small, place)
        assert error.value.path == place
    (tmp_path / "empty").mkdir()
    save(small, tmp_path / "empty")  # an empty folder is fine


def test_no_permission(small, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)  # root may write to any real folder
    with pytest.raises(FolderError):
        save(small, tmp_path / "m")


@pytest.fixture
def _two_renames(monkeypatch):
    """A system that cannot exchange two names in one step."""
    monkeypatch.setattr("espalier.io.output.exchange", lambda *_: False)


@pytest.mark.usefixtures("_two_renames")
def test_a_rename_that_fails_restores_the_old_one(small, tmp_path, monkeypatch):
    save(small, tmp_path / "m")
    want, real = outputs(small, inputs(small)), os.replace

    def stubborn(source, target):
        if Path(target).name == "m" and ".old." not in Path(source).name:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", stubborn)
    with pytest.raises(FolderError) as error:
        save(small, tmp_path / "m")
    assert error.value.path == tmp_path / "m"
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    same(outputs(load(tmp_path / "m"), inputs(small)), want, "the old one", exact=True)


@pytest.mark.usefixtures("_two_renames")
@pytest.mark.parametrize("again", [False, True])
def test_ctrl_c_between_the_two_renames_restores_the_old_one(small, tmp_path, monkeypatch, again):
    """Pressed twice it also stops restoring; the old folder stays, and the error of `load` has its path."""
    save(small, tmp_path / "m")
    want, real = outputs(small, inputs(small)), os.replace

    def interrupted(source, target):
        if Path(target).name == "m" and (again or ".old." not in Path(source).name):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(small, tmp_path / "m")
    monkeypatch.undo()
    (left,) = tmp_path.iterdir()
    if again:
        with pytest.raises(FolderError) as error:
            load(tmp_path / "m")
        assert error.value.path == left
        left.rename(tmp_path / "m")
    same(outputs(load(tmp_path / "m"), inputs(small)), want, "the old one", exact=True)


@pytest.mark.usefixtures("_two_renames")
def test_an_old_one_that_cannot_be_restored_is_named(small, tmp_path, monkeypatch):
    save(small, tmp_path / "m")
    real = os.replace

    def stubborn(source, target):
        if Path(target).name == "m":
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", stubborn)
    with pytest.raises(FolderError) as error:
        save(small, tmp_path / "m")
    monkeypatch.undo()
    (left,) = tmp_path.iterdir()
    assert error.value.path == left
    load(left)


def test_leftovers_of_a_killed_write_are_logged_and_stay(small, tmp_path, caplog):
    for name in (".m.0123abcd", ".m.0123456789abcdef.tmp", ".m.mine", ".other.0123abcd"):
        (tmp_path / name).mkdir()
    save(small, tmp_path / "m")
    assert str(tmp_path / ".m.0123abcd") in caplog.text
    assert str(tmp_path / ".m.0123456789abcdef.tmp") in caplog.text
    assert ".mine" not in caplog.text
    assert ".other." not in caplog.text
    assert (tmp_path / ".m.0123abcd").is_dir()


def test_sizes_are_compared_though_transformers_does_not(small, bert, tmp_path):
    """With a loader of our own, transformers would take a weight of any size."""
    save(small, tmp_path / "m")
    auto = transformers.AutoModelForSequenceClassification
    with pytest.raises(RuntimeError):
        auto.from_pretrained(tmp_path / "m", num_labels=5)
    whole = tiny("bert", "AutoModelForSequenceClassification")
    safetensors.torch.save_file(whole.state_dict(), weights(tmp_path / "m"), {"format": "pt"})
    with pytest.raises(FormatError):
        load(tmp_path / "m")
    with pytest.raises(ValueError, match=r"encoder\.layer\.0"):  # what was cut is never drawn at random
        auto.from_pretrained(tmp_path / "m", ignore_mismatched_sizes=True)


@pytest.mark.parametrize(
    ("kind", "saved", "loaded"),
    [
        ("t5", "T5ForConditionalGeneration", "T5EncoderModel"),
        ("bart", "BartForConditionalGeneration", "BartForCausalLM"),
        ("bert", "BertModel", "BertForMaskedLM"),
        ("whisper", "WhisperForConditionalGeneration", "WhisperForAudioClassification"),
    ],
)
def test_a_folder_loads_into_a_class_with_fewer_blocks(kind, saved, loaded, tmp_path):
    tops = {"t5": "AutoModelForSeq2SeqLM", "bart": "AutoModelForSeq2SeqLM", "bert": "AutoModel"}
    model = tiny(kind, tops.get(kind, "AutoModelForSpeechSeq2Seq"))
    assert type(model).__name__ == saved
    cut(model, uneven(sites(model), 1), report=False)
    save(model, tmp_path / "m")
    other = getattr(transformers, loaded).from_pretrained(tmp_path / "m")
    left = {s.name: s.units for s in sites(model)}
    assert all(s.units == left[s.name] for s in sites(other))
    outputs(other, inputs(other))


def test_a_loaded_model_carries_no_trace_of_the_folder(small, tmp_path):
    save(small, tmp_path / "m")
    again = load(tmp_path / "m")
    assert not hasattr(again.config, "auto_map")
    again.save_pretrained(tmp_path / "plain")
    transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "plain", trust_remote_code=True
    )
    save(again, tmp_path / "m2")
    origin = Plan.load(tmp_path / "m2" / "plan.json").origin
    assert origin["model"] == "m"  # a name, not a path of this machine


def test_facts_of_another_model_are_not_taken_from_a_plan(bert, tmp_path):
    other = tiny("bert").to(torch.bfloat16)
    other.pooler.to(torch.float32)
    prune_heads(other, {0: [0]})
    save(other, tmp_path / "other", origin={"mask": "by hand", "class": "Nonsense"})
    plan = Plan.load(tmp_path / "other" / "plan.json")
    assert plan.origin["class"] == "BertModel"
    cut(bert, plan, report=False)
    save(bert, tmp_path / "m")
    assert {p.dtype for p in load(tmp_path / "m").parameters()} == {torch.float32}
    assert Plan.load(tmp_path / "m" / "plan.json").origin["mask"] == "by hand"
    with pytest.raises(EspalierError):
        save(bert, tmp_path / "m", origin={"where": Path("x")})


def test_a_chosen_dtype_is_the_one_you_get(small, tmp_path):
    small.to(torch.bfloat16)
    small.classifier.to(torch.float16)
    with torch.no_grad():
        small.classifier.weight.fill_(1 + 2**-10)  # float16 has it, bfloat16 has not
    save(small, tmp_path / "m")
    assert torch.equal(load(tmp_path / "m").classifier.weight, small.classifier.weight)
    wide = load(tmp_path / "m", dtype=torch.float64)
    assert {p.dtype for p in wide.parameters()} == {torch.float64}


HOSTILE = {
    "a future version": lambda r: r.update(version=7),
    "no version": lambda r: r.pop("version"),
    "no skeleton": lambda r: r.pop("skeleton"),
    "a method overwritten": lambda r: r["skeleton"]["attributes"].update({"encoder.forward": 5}),
    "a private thing": lambda r: r["skeleton"]["attributes"].update({"encoder.__class__": 5}),
    "an attention kernel": lambda r: r["skeleton"]["attributes"].update(
        {"encoder.layer.0.attention.self.config._attn_implementation": 1}
    ),
    "a text for a number": lambda r: r["skeleton"]["attributes"].update({"encoder.x": "evil"}),
    "a graft that is none": lambda r: r["skeleton"]["grafts"].update({"encoder": {"as": ["os.system"]}}),
    "a graft twice": lambda r: r["skeleton"]["grafts"].update({"encoder": {"as": ["Headless", "Headless"]}}),
    "a graft on the wrong module": lambda r: r["skeleton"]["grafts"].update(
        {"encoder": {"as": ["Headless"], "tail": "c_proj"}}
    ),
    "a graft of no argument": lambda r: r["skeleton"]["grafts"].update(
        {"encoder": {"as": ["Narrowed"], "argument": "alibi", "heads": 6, "kept": [1]}}
    ),
    "a graft as text": lambda r: r["skeleton"]["grafts"].update({"encoder": "Headless"}),
    "sizes as text": lambda r: r["skeleton"]["shapes"].update({"pooler.dense.weight": ["1", "2"]}),
    "a plan as text": lambda r: r.update(plan="0-3"),
    "a bomb": lambda r: r["plan"].update(units={"a": 10**12}, keep={"a": "0-999999999999"}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_configs_are_refused(small, tmp_path, what):
    save(small, tmp_path / "m")
    edit_config(tmp_path / "m", lambda raw: HOSTILE[what](raw["quantization_config"]))
    with pytest.raises(EspalierError):
        load(tmp_path / "m")
    if "plan" not in what and "bomb" not in what:  # the stock loader does not read the plan
        with pytest.raises((ValueError, TypeError)):
            transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")


def test_more_hostile_folders(small, tmp_path):
    for name in "abcd":
        save(small, tmp_path / name, max_shard_size="40KB" if name == "a" else "5GB")
    index = tmp_path / "a" / "model.safetensors.index.json"
    raw = json.loads(index.read_text())
    raw["weight_map"] = {k: f"../{v}" for k, v in raw["weight_map"].items()}
    index.write_text(json.dumps(raw))
    weights(tmp_path / "b").rename(tmp_path / "b" / "pytorch_model.bin")
    (tmp_path / "c" / "config.json").write_text("[]")
    raw = json.loads((tmp_path / "d" / "plan.json").read_text())
    (tmp_path / "d" / "plan.json").write_text(json.dumps({**raw, "dtypes": {"": "hub"}}))
    for wrong in (index, tmp_path / "b", tmp_path / "c" / "config.json", tmp_path / "d" / "plan.json"):
        with pytest.raises(FormatError) as error:
            load(tmp_path / wrong.relative_to(tmp_path).parts[0])
        assert error.value.path == wrong


def test_what_save_pretrained_wrote_loads_too(small, tmp_path):
    small.save_pretrained(tmp_path / "m")
    same(
        outputs(load(tmp_path / "m"), inputs(small)),
        outputs(small, inputs(small)),
        "no plan.json",
        exact=True,
    )


def test_files_of_other_programs_stay(small, tmp_path):
    save(small, tmp_path / "m", max_shard_size="40KB")
    for name in ("training_args.bin", "adapter.safetensors", "my.index.json"):
        (tmp_path / "m" / name).write_text("x")
    save(small, tmp_path / "m")
    names = {p.name for p in (tmp_path / "m").iterdir()}
    assert {
        "training_args.bin",
        "adapter.safetensors",
        "my.index.json",
        "model.safetensors",
    } <= names
    assert not any(name.startswith("model-0") for name in names)  # no old shard is left
    load(tmp_path / "m")


def test_an_export_names_its_class(tmp_path):
    model = tiny("llama", "AutoModelForCausalLM")
    cut(model, even(model, "heads", 2), report=False)
    export(model, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]


def test_nothing_to_save_yet(tmp_path):
    with torch.device("meta"):
        model = tiny("bert")
    with pytest.raises(UnsupportedError):
        save(model, tmp_path / "m")


def test_a_save_does_not_keep_the_record_of_a_training(tmp_path):
    """It describes other weights, and a resumed training would take these for its own."""
    save(tiny("bert"), tmp_path / "m")
    (tmp_path / "m" / "training.json").write_text("{}")
    (tmp_path / "m" / "README.md").write_text("kept")
    with pytest.raises(FolderError):
        save(tiny("bert"), tmp_path / "m")
    save(tiny("bert"), tmp_path / "m", overwrite=True)
    assert not (tmp_path / "m" / "training.json").exists()
    assert (tmp_path / "m" / "README.md").read_text() == "kept"
