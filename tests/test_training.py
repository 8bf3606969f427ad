"""Fine-tuning: it learns, it resumes after any interruption, and wrong input is refused."""

import copy
import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toys
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

import espalier
from espalier import criteria, cut, plan_of, save, sites
from espalier.core.errors import (
    ConflictError,
    DataError,
    FolderError,
    FormatError,
    InvalidValueError,
    UnsupportedError,
)
from espalier.evaluation.predictions import predict
from espalier.tasks.batches import batches_of
from espalier.tasks.task import Examples
from espalier.testing.architecture import tiny, uneven
from espalier.training import Callback, Gradual, Hold, Movement, train
from espalier.training.data import batch_order, prepare_data
from espalier.training.folder import _put, checksum, read_state
from espalier.training.optimizer import lr_factor
from espalier.training.run import Run, make_accelerator

WORDS = [f"w{i}" for i in range(60)]
SETTINGS = {"epochs": 2, "batch_size": 8, "lr": 1e-3, "max_length": 32}
PER_EPOCH = 7  # 50 examples by 8
CHILD = "import sys; getattr(__import__(sys.argv[1]), sys.argv[2])(sys.argv[3])"


def words(**special):
    ids = {"[PAD]": 0, "[BOS]": 1, "[EOS]": 2, "[UNK]": 3} | {w: i + 4 for i, w in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "eos_token": "[EOS]", "unk_token": "[UNK]"} | special
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def sentences(n=50):
    """Sentences of different lengths; the label is the half of the words they are drawn from."""
    draw = random.Random(0)
    labels = [draw.randint(0, 1) for _ in range(n)]
    texts = [" ".join(draw.choices(WORDS[30 * x :][:30], k=draw.randint(3, 20))) for x in labels]
    return Examples(tuple(texts), None, tuple(map(float, labels)))


def tiny_bert(**config):
    return tiny("bert", "AutoModelForSequenceClassification", **config)


def bert_without_dropout():
    return tiny_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def run(model, folder=None, **more):
    return train(model, words(), sentences(), folder=folder, **{**SETTINGS, **more})


def same(a, b):
    b = dict(b.named_parameters())
    return all(torch.equal(p, b[name]) for name, p in a.named_parameters())


def stopping_at(step):
    def stop(progress):
        if progress.done == step:
            raise KeyboardInterrupt

    return stop


class Spoil(Callback):
    """Changes the weights before a state is loaded: the state must replace them."""

    def on_start(self, run):
        with torch.no_grad():
            run.model.classifier.weight.zero_()


# ------------------------------------------------------------------------------------------ killed


def slow(folder, **more):
    """Train slowly and print every step: the process that is killed."""
    torch.set_num_threads(1)

    def show(progress):
        print(progress.done, flush=True)
        time.sleep(0.02)

    run(tiny_bert(), folder, save_every=4, on_progress=show, **more)


def killed_at(step, folder, module="test_training", what="slow"):
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, module, what, folder],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stdout:
            if int(line) >= step:
                process.send_signal(signal.SIGKILL)
                break
        errors = process.stderr.read()
    assert process.returncode == -signal.SIGKILL, errors


def test_resumed_after_a_kill_gives_the_same_weights(tmp_path):
    """The last state is of the first epoch; the steps left cross its end."""
    whole = tiny_bert()
    want = run(whole)
    killed_at(6, tmp_path / "m")
    about, _ = read_state(tmp_path / "m" / ".espalier-training" / "state.safetensors")
    assert (about["step"], about["epoch"], about["seed"]) == (4, 0, 0)
    model = tiny_bert()
    got = run(model, tmp_path / "m", save_every=4, callback=Spoil())
    assert same(model, whole)
    assert got["loss"] == want["loss"]


def test_stopped_after_every_single_step(tmp_path):
    """Also after the last step of an epoch."""
    seen = []

    def evaluate(model):
        seen.append(model.training)
        return {"sum": sum(p.sum().item() for p in model.parameters())}

    whole = tiny_bert()
    want = run(whole, evaluate=evaluate)
    model = tiny_bert()
    for step in range(1, 2 * PER_EPOCH + 1):
        with pytest.raises(KeyboardInterrupt):
            run(model, tmp_path, save_every=1, evaluate=evaluate, on_progress=stopping_at(step))
        model = tiny_bert()
    got = run(model, tmp_path, save_every=1, evaluate=evaluate)
    assert same(model, whole)
    assert [row["sum"] for row in got["epochs"]] == [row["sum"] for row in want["epochs"]]
    assert not any(seen)


def test_stopped_while_evaluating(tmp_path):
    """Every epoch has its row, though the first evaluation came to nothing."""

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny_bert(), tmp_path, save_every=1, evaluate=stop)
    got = run(tiny_bert(), tmp_path, save_every=1, evaluate=lambda model: {"seen": True})
    assert [(row["epoch"], row["seen"]) for row in got["epochs"]] == [(1, True), (2, True)]


def test_states_are_written_by_time(tmp_path, monkeypatch):
    """Without `save_every`."""
    monkeypatch.setattr("espalier.training.run.STATE_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run(tiny_bert(), tmp_path, on_progress=stopping_at(4))
    assert (tmp_path / ".espalier-training" / "state.safetensors").exists()


def test_other_settings_are_another_training(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tiny_bert(), tmp_path, save_every=1, on_progress=stopping_at(3))
    with pytest.raises(ConflictError) as error:
        run(tiny_bert(), tmp_path, lr=2e-3)
    assert (error.value.path, error.value.differences) == (tmp_path, "lr 0.001, now 0.002")
    smaller = tiny_bert()
    cut(smaller, uneven(sites(smaller), 1), report=False)
    with pytest.raises(ConflictError) as error:
        run(smaller, tmp_path)
    assert error.value.differences.startswith("weights ")
    run(tiny_bert(), tmp_path, lr=2e-3, overwrite=True)
    with pytest.raises(ConflictError) as error:
        run(tiny_bert(), tmp_path, lr=2e-3, epochs=3)
    assert error.value.differences == "epochs 2, now 3"


def nudged():
    """A model of the same shapes with one other weight."""
    model = tiny_bert()
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight[0, 0] += 1
    return model


def test_other_weights_are_another_training(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tiny_bert(), tmp_path, save_every=1, on_progress=stopping_at(3))
    with pytest.raises(ConflictError) as error:
        run(nudged(), tmp_path)
    assert error.value.differences.startswith("fingerprint ")
    model = tiny_bert()
    want = run(model, tmp_path)
    with pytest.raises(ConflictError) as error:
        run(nudged(), tmp_path)
    assert error.value.differences.startswith("fingerprint ")
    assert run(model, tmp_path, on_progress=stopping_at(1)) == want  # the model that was trained here
    run(nudged(), tmp_path, overwrite=True)


def test_an_interrupted_model_resumes_in_its_folder(tmp_path):
    """Its weights are neither those of the start nor those of the last state, but the folder knows them."""
    whole, model = tiny_bert(), tiny_bert()
    run(whole)
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path, save_every=3, on_progress=stopping_at(5))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.classifier.weight[0, 0] += 1
    with pytest.raises(ConflictError) as error:
        run(other, tmp_path)
    assert error.value.differences.startswith("fingerprint ")
    run(model, tmp_path)
    assert same(model, whole)


OLD_SETTINGS = {
    "batch_size": "batch",
    "lr": "rate",
    "weight_decay": "decay",
    "max_length": "length",
    "callback": "regime",
    "remove": "keep",
    "mask_interval": "every",
    "ste": "straight",
    "score_lr": "score_rate",
    "method": "by",
}


def make_older(settings):
    """Return settings as older versions wrote them: fractions kept, other names, no scope of their own."""
    out = {OLD_SETTINGS.get(name, name): value for name, value in settings.items()}
    out |= {name: 1 - out[name] for name in ("keep", "initial") if name in out}
    if out.get("regime") == "gradual":
        del out["scope"]
    return out


@pytest.mark.parametrize("name", ["plain", "hold", "gradual", "movement"])
def test_trainings_of_older_versions_are_recognised(name, tmp_path):
    """Interrupted ones resume to the same weights, finished ones are finished."""
    from safetensors.torch import load_file, save_file

    magnitude = criteria.load("magnitude")
    make = {
        "plain": Callback,
        "hold": Hold,
        "gradual": lambda: Gradual(magnitude, 0.7, ste=True, about={"method": "magnitude"}),
        "movement": lambda: Movement(0.7, initial=0.1),
    }[name]
    whole, model = tiny_bert(), tiny_bert()
    run(whole, callback=make())
    with pytest.raises(KeyboardInterrupt):
        run(tiny_bert(), tmp_path, save_every=3, callback=make(), on_progress=stopping_at(8))
    file = tmp_path / ".espalier-training" / "state.safetensors"
    about, _ = read_state(file)
    tensors = {
        n.replace("callback/latent/", "regime/behind/").replace("callback/", "regime/"): t
        for n, t in load_file(file).items()
    }
    older = {**about, "version": 1, "settings": make_older(about["settings"]), "checksum": checksum(tensors)}
    save_file(tensors, file, {"espalier": json.dumps(older)})
    want = run(model, tmp_path, callback=make())
    assert same(model, whole)
    record = json.loads((tmp_path / "training.json").read_text())
    record["settings"] = make_older(record["settings"])
    (tmp_path / "training.json").write_text(json.dumps(record))
    assert run(tiny_bert(), tmp_path, callback=make(), on_progress=stopping_at(1)) == want
    with pytest.raises(ConflictError) as error:
        run(tiny_bert(), tmp_path, callback=make(), lr=2e-3)
    assert error.value.differences == "lr 0.001, now 0.002"


def test_a_record_without_a_fingerprint_is_taken_with_a_warning(tmp_path, caplog):
    want = run(tiny_bert(), tmp_path)
    record = json.loads((tmp_path / "training.json").read_text())
    del record["settings"]["fingerprint"]
    (tmp_path / "training.json").write_text(json.dumps(record))
    assert run(nudged(), tmp_path, on_progress=stopping_at(1)) == want
    assert next(entry.levelname for entry in caplog.records if entry.name == "espalier") == "WARNING"
    with pytest.raises(ConflictError) as error:
        run(nudged(), tmp_path, lr=2e-3)
    assert "lr 0.001, now 0.002" in error.value.differences


def test_overwrite_stopped_before_its_first_state(tmp_path):
    """The model of before does not count as its result, and none of its files is left over."""
    run(tiny_bert(), tmp_path)
    record = json.loads((tmp_path / "training.json").read_text())
    (tmp_path / "training.json").write_text(
        json.dumps({**record, "files": [*record["files"], "old.safetensors"]})
    )
    (tmp_path / "old.safetensors").write_text("a shard of before")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(tiny_bert(), tmp_path, overwrite=True, on_progress=stopping_at(3))
    with pytest.raises(KeyboardInterrupt):
        run(tiny_bert(), tmp_path, on_progress=stopping_at(3))
    model = tiny_bert()
    run(model, tmp_path)
    assert same(transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path), model)
    assert not (tmp_path / "old.safetensors").exists()
    assert not (tmp_path / ".espalier-training").exists()


def test_the_model_of_before_is_not_taken_for_the_new_one(tmp_path, monkeypatch):
    """A training that overwrites is stopped, at any of the changes that it makes to the folder."""
    folder = tmp_path / "t"
    run(tiny_bert(), folder)
    (folder / "notes.md").write_text("mine")
    real, moved = os.replace, []

    def stopped(source, target):
        if Path(target).parent.name == "before":
            moved.append(Path(target).name)
            if len(moved) == after:
                raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", stopped)
    for after, again in ((1, True), (2, False), (2, True), (0, True)):
        moved.clear()
        with pytest.raises(KeyboardInterrupt):
            run(tiny_bert(), folder, overwrite=again, on_progress=stopping_at(3))
        with pytest.raises(FolderError):
            espalier.evaluate(folder, toys.task())
        if after == 1:  # nothing was moved yet
            continue
        with pytest.raises(FolderError):
            espalier.load(folder)
        with pytest.raises((OSError, ValueError)):
            transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    kept = folder / ".espalier-training" / "before"
    assert {"config.json", "model.safetensors", "training.json"} <= {p.name for p in kept.iterdir()}
    assert (folder / "notes.md").read_text() == "mine"
    model = tiny_bert()
    run(model, folder)
    assert same(espalier.load(folder), model)
    assert not kept.exists()
    assert (folder / "notes.md").read_text() == "mine"


def test_two_trainings_in_one_folder_are_refused(tmp_path):
    def second(_):
        with pytest.raises(FolderError):
            run(tiny_bert(), tmp_path, overwrite=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny_bert(), tmp_path, save_every=1, on_progress=second)
    model, whole = tiny_bert(), tiny_bert()
    run(model, tmp_path)  # the lock is released
    run(whole)
    assert same(model, whole)


@pytest.mark.parametrize("harm", ["short", "flipped", "nonsense", "without", "stranger"])
def test_a_damaged_state_is_refused(harm, tmp_path):
    from safetensors.torch import save_file

    with pytest.raises(KeyboardInterrupt):
        run(tiny_bert(), tmp_path, save_every=1, on_progress=stopping_at(3))
    state = tmp_path / ".espalier-training" / "state.safetensors"
    raw = bytearray(state.read_bytes())
    if harm == "short":
        state.write_bytes(raw[:-100])
    elif harm == "flipped":
        raw[-50] ^= 1
        state.write_bytes(raw)
    elif harm == "nonsense":
        state.write_bytes(b"\xff" * 1000)
    elif harm == "without":
        save_file({"a": torch.zeros(1)}, state)
    else:
        save_file({"a": torch.zeros(1)}, state, {"espalier": "[1]"})
    with pytest.raises(FormatError) as error:
        run(tiny_bert(), tmp_path)
    assert error.value.path == state
    run(tiny_bert(), tmp_path, overwrite=True)


def test_a_full_disk(tmp_path):
    """No file may grow beyond a few bytes: the last state stays, and the training resumes later."""
    whole, model = tiny_bert(), tiny_bert()
    run(whole)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(progress):
        if progress.done == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))

    try:
        with pytest.raises(FolderError) as error:
            run(model, tmp_path, save_every=4, on_progress=fill)
        assert error.value.path == tmp_path
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((tmp_path / ".espalier-training").glob("*.part"))
    assert read_state(tmp_path / ".espalier-training" / "state.safetensors")[0]["step"] == 4
    again = tiny_bert()
    run(again, tmp_path)
    assert same(again, whole)


def test_a_disk_that_is_full_at_the_end(tmp_path, monkeypatch):
    """All steps are done, the model cannot be written: only that is left to do later."""
    model = tiny_bert()

    def no_room(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(model, "save_pretrained", no_room)
    with pytest.raises(FolderError):
        run(model, tmp_path / "m")
    again = tiny_bert()
    run(again, tmp_path / "m", on_progress=stopping_at(1))  # which never comes
    assert same(again, model)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "m", tmp_path):
        with pytest.raises(FolderError) as error:
            run(tiny_bert(), folder, overwrite=True)
        assert error.value.path == folder
    assert (tmp_path / "file").exists()


# ------------------------------------------------------------------------------------------ finished


def test_a_finished_folder(tmp_path):
    model = tiny_bert()
    cut(model, uneven(sites(model), 1), report=False)
    untrained = copy.deepcopy(model)
    want = run(model, tmp_path / "m", origin={"task": "words"})
    assert not (tmp_path / "m" / ".espalier-training").exists()
    auto = transformers.AutoModelForSequenceClassification
    found = auto.from_pretrained(tmp_path / "m")
    assert same(found, model)
    assert plan_of(found).keep == plan_of(model).keep
    transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    record = json.loads((tmp_path / "m" / "training.json").read_text())
    assert record["history"] == want
    assert record["origin"] == {"task": "words"}
    assert (record["settings"]["lr"], record["settings"]["batch_size"]) == (1e-3, 8)
    stamp = (tmp_path / "m" / "model.safetensors").stat().st_mtime_ns
    assert run(untrained, tmp_path / "m", on_progress=stopping_at(1)) == want
    assert (tmp_path / "m" / "model.safetensors").stat().st_mtime_ns == stamp
    assert same(untrained, model)  # the trained weights are loaded


def test_killed_while_finishing(tmp_path, monkeypatch):
    """All steps are done, but not every file is in its place."""
    model, real = tiny_bert(), os.replace

    def replace(source, target):
        if Path(source).parent.name == "finished" and Path(target).name == "training.json":
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            run(model, tmp_path)
    again = tiny_bert()
    run(again, tmp_path, on_progress=stopping_at(1))  # which never comes: there is no step left
    assert same(again, model)
    assert not (tmp_path / ".espalier-training").exists()


# ------------------------------------------------------------------------------------------ the loop


def test_it_learns():
    history = run(tiny_bert(), epochs=12)
    losses = [row["loss"] for row in history["epochs"]]
    assert losses[-1] < 0.5 * losses[0]
    assert history["steps"] == 12 * PER_EPOCH == history["loss"][-1]["step"]
    assert history["seconds"] > 0


def test_dropout_is_on_and_the_random_state_of_the_caller_is_kept():
    modes, model = [], tiny_bert()
    torch.manual_seed(5)
    run(model, on_progress=lambda _: modes.append(model.training))
    after = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(3))
    assert all(modes)
    assert not model.training
    calm = bert_without_dropout()
    run(calm)
    assert not same(calm, model)


def test_batches_of_one_epoch():
    lengths = [(7 * i) % 53 + 3 for i in range(1003)]
    batches = batch_order(lengths, 16, 0, 0)
    assert sorted(i for b in batches for i in b) == list(range(1003))
    assert sorted(map(len, batches)) == [11] + [16] * 62
    padded = sum(len(b) * max(lengths[i] for i in b) for b in batches)
    assert padded < 1.05 * sum(lengths)
    assert batches == batch_order(lengths, 16, 0, 0)
    assert batches != batch_order(lengths, 16, 0, 1)
    assert batches != batch_order(lengths, 16, 1, 0)
    means = [sum(lengths[i] for i in b) / len(b) for b in batches]
    assert means != sorted(means)  # not the short ones first


def test_the_learning_rate_rises_and_falls():
    factors = [lr_factor(step, 100, 0.1) for step in range(100)]
    assert factors[0] == 0.1
    assert factors[9] == factors[10] == max(factors) == 1
    assert factors[99] == pytest.approx(1 / 90)
    assert lr_factor(0, 1, 0.0) == lr_factor(0, 1, 0.1) == 1


def test_biases_and_norms_do_not_decay():
    model = tiny_bert()
    data = prepare_data(model, words(), sentences(), "classification", 32)
    settings = {"batch_size": 8, "epochs": 1, "lr": 1.0, "weight_decay": 0.1}
    made = Run(model, data, settings, make_accelerator("fp32"))
    decay = {id(p): g["weight_decay"] for g in made.optimizer.param_groups for p in g["params"]}
    for name, p in model.named_parameters():
        plain = name.endswith("bias") or "LayerNorm" in name
        assert decay[id(p)] == (0.0 if plain else 0.1), name


def test_both_precisions_in_one_program():
    model = tiny_bert()
    loss = run(model, precision="bf16")["epochs"][-1]["loss"]
    assert "forward" not in model.__dict__
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert loss == pytest.approx(run(tiny_bert())["epochs"][-1]["loss"], rel=0.05)
    assert loss != run(tiny_bert())["epochs"][-1]["loss"]


def test_frozen_weights_stay(tmp_path):
    model = tiny_bert()
    model.bert.embeddings.requires_grad_(False)
    before = model.bert.embeddings.word_embeddings.weight.clone()
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path, save_every=1, on_progress=stopping_at(3))
    run(model, tmp_path)
    assert torch.equal(before, model.bert.embeddings.word_embeddings.weight)
    with pytest.raises(UnsupportedError):
        run(model.requires_grad_(False))


def measured(model):
    """Measure as every verb does: processes share the examples."""
    texts = sentences()
    batches = batches_of(texts, words(), "classification", max_length=32)
    return predict(model, batches).metrics("classification", np.array(texts.labels, dtype=float))


def half(folder):
    """One of two processes."""
    history = run(bert_without_dropout(), folder, batch_size=7, save_every=3, evaluate=measured)
    print(json.dumps(history["epochs"]))


def in_two_processes(module, what, folder):
    """Return what the first of them prints."""
    port = str(20_000 + os.getpid() % 20_000)
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, module, what, folder],
            cwd=Path(__file__).parent,
            env={**os.environ, **common, "RANK": who, "LOCAL_RANK": who},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for who in "01"
    ]
    printed = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    return json.loads(printed[0][0])


def test_two_processes_are_as_good_as_one(tmp_path):
    """Of fifty examples in batches of 7 the last batch has one: one of the two has nothing to do."""
    got = in_two_processes("test_training", "half", tmp_path / "m")
    alone = bert_without_dropout()
    want = run(alone, batch_size=7, evaluate=measured)["epochs"]
    for name in ("loss", "accuracy"):
        assert [row[name] for row in got] == pytest.approx([row[name] for row in want], rel=1e-2)
    found = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
    for (name, p), q in zip(found.named_parameters(), alone.parameters()):
        assert torch.allclose(p, q, atol=2e-3), name
    record = json.loads((tmp_path / "m" / "training.json").read_text())
    assert record["settings"]["processes"] == 2


# ------------------------------------------------------------------------------------------ other tasks


def test_regression_and_pairs():
    examples = sentences()
    graded = Examples(examples.texts, examples.texts[::-1], tuple(i / 50 for i in range(50)))
    model = tiny_bert(num_labels=1)
    history = train(model, words(), graded, kind="regression", **SETTINGS)
    assert history["epochs"][1]["loss"] < history["epochs"][0]["loss"]
    assert model.config.problem_type == "regression"
    with pytest.raises(UnsupportedError):
        train(tiny_bert(), words(), graded, kind="regression", **SETTINGS)


def test_language():
    model, examples = tiny("gpt2", "AutoModelForCausalLM"), sentences()
    settings = {**SETTINGS, "max_length": 16, "kind": "language"}
    data = prepare_data(model, words(), examples, "language", 16)
    line = [t for row in data.rows for t in row["input_ids"]]
    assert {len(row["input_ids"]) for row in data.rows} == {16}
    running = [int(w[1:]) + 4 for text in examples.texts for w in text.split()]
    assert line == running[: len(line)]  # one text after the other, as it is measured
    assert len(running) - len(line) < 16
    history = train(model, words(), replace(examples, labels=None), **settings)
    assert history["epochs"][1]["loss"] < history["epochs"][0]["loss"]


def test_a_model_that_never_needed_padding():
    tokenizer = words(pad_token=None)
    model = tiny("gpt2", "AutoModelForSequenceClassification", pad_token_id=None)
    train(model, tokenizer, sentences(), **SETTINGS)
    assert model.config.pad_token_id == tokenizer.pad_token_id == 2


# ------------------------------------------------------------------------------------------ wrong input


def test_what_cannot_be_trained_on():
    good, bert = sentences(), tiny_bert()
    for examples in (
        Examples((), None, ()),
        replace(good, labels=None),
        replace(good, labels=(2.0,) * 50),
        replace(good, labels=(0.5,) * 50),
        replace(good, texts=(*good.texts[:-1], "")),
    ):
        with pytest.raises(DataError):
            train(bert, words(), examples, **SETTINGS)
    long = replace(good, texts=("w1 " * 100,) * 50)
    with pytest.raises(InvalidValueError) as error:
        train(tiny_bert(max_position_embeddings=16), words(), long, **SETTINGS)
    assert error.value.parameter == "max_length"
    for model in (tiny("bert"), tiny_bert().bfloat16()):
        with pytest.raises(UnsupportedError):
            run(model)
    with pytest.raises(DataError):
        train(bert, words(pad_token=None, eos_token=None), good, **SETTINGS)
    with pytest.raises(DataError):
        run(tiny_bert(vocab_size=20))
    for wrong in ({"kind": "poetry"}, {"precision": "int3"}, {"epochs": 0}, {"lr": 0.0}, {"seed": -1}):
        with pytest.raises(InvalidValueError) as error:
            run(bert, **wrong)
        assert error.value.parameter == next(iter(wrong))


def test_a_loss_that_is_not_finite(tmp_path):
    with pytest.raises(InvalidValueError) as error:
        run(tiny_bert(), tmp_path, lr=1e38, warmup=0.0, save_every=1)
    assert error.value.parameter == "lr"


# --- through the command line


@pytest.fixture
def material(tmp_path):
    """A model and a file of labelled sentences, as a person has them."""
    model, examples = tiny_bert(), sentences(200)
    model.save_pretrained(tmp_path / "bert")
    words().save_pretrained(tmp_path / "bert")
    lines = [f"{t}\t{('short', 'long')[int(x)]}" for t, x in zip(examples.texts, examples.labels)]
    (tmp_path / "lengths.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return tmp_path


def verb(*typed):
    import espalier.cli.train  # noqa: F401 - adds its verb
    from espalier.cli import app

    return CliRunner().invoke(app, ["train", *map(str, typed)], catch_exceptions=False)


def test_the_verb(material):
    typed = (material / "bert", "--task", material / "lengths.tsv", "-o", material / "tuned")
    typed += ("--epochs", 2, "--lr", 1e-3, "--examples", 64, "--max-length", 32)
    done = verb(*typed)
    assert done.exit_code == 0
    assert "64 examples, 4 steps" in done.output
    assert "accuracy" in done.stdout  # of validation, by epoch
    assert "loss" in done.stderr  # the progress of it
    config = transformers.AutoConfig.from_pretrained(material / "tuned")
    assert set(config.label2id) == {"short", "long"}
    again = json.loads(verb(*typed, "--json").stdout)
    assert len(again["epochs"]) == 2
    record = json.loads((material / "tuned" / "training.json").read_text())
    assert record["origin"]["model"] == "bert"
    with pytest.raises(ConflictError):
        verb(*typed, "--lr", 0.1)
    assert verb(*typed, "--lr", 1e-4, "--overwrite").exit_code == 0


def test_the_verb_gives_a_model_a_new_head(material):
    """Three classes before, two now."""
    tiny_bert(num_labels=3).save_pretrained(material / "three")
    words().save_pretrained(material / "three")
    typed = ("--task", material / "lengths.tsv", "--epochs", 1, "--max-length", 32)
    assert verb(material / "three", *typed, "-o", material / "two").exit_code == 0
    config = transformers.AutoConfig.from_pretrained(material / "two")
    assert config.num_labels == 2


def test_the_verb_on_a_cut_model(material):
    model = tiny_bert()
    cut(model, uneven(sites(model), 1), report=False)
    save(model, material / "cut", tokenizer=words())
    typed = ("--task", material / "lengths.tsv", "--epochs", 1, "--max-length", 32)
    assert verb(material / "cut", *typed, "-o", material / "again").exit_code == 0
    found = transformers.AutoModelForSequenceClassification.from_pretrained(material / "again")
    assert plan_of(found).keep == plan_of(model).keep


def test_a_training_takes_the_place_of_an_earlier_one_with_folders_of_modules(tmp_path):
    """As sentence-transformers has them, 1_Pooling beside the model."""
    for number in (1, 2):
        (tmp_path / f"{number}" / "1_Pooling").mkdir(parents=True)
        (tmp_path / f"{number}" / "1_Pooling" / "config.json").write_text(f"{number}")
    _put(tmp_path / "2" / "1_Pooling", tmp_path / "1" / "1_Pooling")
    assert (tmp_path / "1" / "1_Pooling" / "config.json").read_text() == "2"
