"""Fine-tuning: it learns, it can be killed at any moment, and what goes wrong is said."""

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
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from espalier import EspalierError, cut, plan_of, save, sites
from espalier.evaluation.predictions import answer
from espalier.experiment.session import batches_of
from espalier.tasks.task import Examples
from espalier.testing.architecture import tiny, uneven
from espalier.training import train
from espalier.training.checkpoint import read_state
from espalier.training.data import data_of, order
from espalier.training.loop import Run, accelerator_of, share_of_rate
from espalier.training.regime import Regime

WORDS = [f"w{i}" for i in range(60)]
SETTINGS = {"epochs": 2, "batch": 8, "rate": 1e-3, "length": 32}
PER_EPOCH = 7  # 50 examples by 8
CHILD = "import sys; getattr(__import__(sys.argv[1]), sys.argv[2])(sys.argv[3])"


def words(**special):
    ids = {"[PAD]": 0, "[BOS]": 1, "[EOS]": 2, "[UNK]": 3} | {w: i + 4 for i, w in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "eos_token": "[EOS]", "unk_token": "[UNK]"} | special
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def sentences(n=50):
    """Of one half of the words or of the other, and of different lengths."""
    dice = random.Random(0)
    labels = [dice.randint(0, 1) for _ in range(n)]
    texts = [" ".join(dice.choices(WORDS[30 * x :][:30], k=dice.randint(3, 20))) for x in labels]
    return Examples(tuple(texts), None, tuple(map(float, labels)))


def fresh_bert(**config):
    return tiny("bert", "AutoModelForSequenceClassification", **config)


def calm_bert():
    return fresh_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def run(model, folder=None, **more):
    return train(model, words(), sentences(), folder=folder, **{**SETTINGS, **more})


def same(a, b):
    b = dict(b.named_parameters())
    return all(torch.equal(p, b[name]) for name, p in a.named_parameters())


def stopping_at(step):
    def watch(now):
        if now["step"] == step:
            raise KeyboardInterrupt

    return watch


class Spoilt(Regime):
    """Whatever the weights are when a training goes on: the state is the truth."""

    def begin(self, run):
        with torch.no_grad():
            run.model.classifier.weight.zero_()


# ------------------------------------------------------------------------------------------ killed


def slow(folder, **more):
    """What the killed process does: slowly, telling every step."""
    torch.set_num_threads(1)

    def watch(now):
        print(now["step"], flush=True)
        time.sleep(0.02)

    run(fresh_bert(), folder, save_every=4, progress=watch, **more)


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
        said = process.stderr.read()
    assert process.returncode == -signal.SIGKILL, said


def test_killed_and_still_the_same_weights(tmp_path):
    """The last state is of the first epoch; what is left goes over its end."""
    whole = fresh_bert()
    want = run(whole)
    killed_at(6, tmp_path / "m")
    about, _ = read_state(tmp_path / "m" / ".espalier-training" / "state.safetensors")
    assert (about["step"], about["epoch"], about["seed"]) == (4, 0, 0)
    model = fresh_bert()
    got = run(model, tmp_path / "m", save_every=4, regime=Spoilt())
    assert same(model, whole)
    assert got["loss"] == want["loss"]


def test_stopped_after_every_single_step(tmp_path):
    """Also after the last step of an epoch."""
    seen = []

    def evaluate(model):
        seen.append(model.training)
        return {"sum": sum(p.sum().item() for p in model.parameters())}

    whole = fresh_bert()
    want = run(whole, evaluate=evaluate)
    model = fresh_bert()
    for step in range(1, 2 * PER_EPOCH + 1):
        with pytest.raises(KeyboardInterrupt):
            run(model, tmp_path, save_every=1, evaluate=evaluate, progress=stopping_at(step))
        model = fresh_bert()
    got = run(model, tmp_path, save_every=1, evaluate=evaluate)
    assert same(model, whole)
    assert [row["sum"] for row in got["epochs"]] == [row["sum"] for row in want["epochs"]]
    assert not any(seen)


def test_stopped_while_evaluating(tmp_path):
    """Every epoch has its row, though the first evaluation came to nothing."""

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(fresh_bert(), tmp_path, save_every=1, evaluate=stop)
    got = run(fresh_bert(), tmp_path, save_every=1, evaluate=lambda model: {"seen": True})
    assert [(row["epoch"], row["seen"]) for row in got["epochs"]] == [(1, True), (2, True)]


def test_by_the_clock(tmp_path, monkeypatch):
    """Nobody said how many steps: a state when its time has come."""
    monkeypatch.setattr("espalier.training.loop.SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run(fresh_bert(), tmp_path, progress=stopping_at(4))
    assert (tmp_path / ".espalier-training" / "state.safetensors").exists()


def test_other_settings_are_another_training(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(fresh_bert(), tmp_path, save_every=1, progress=stopping_at(3))
    with pytest.raises(EspalierError, match=r"interrupted .*rate 0.001, now 0.002\. .*--fresh"):
        run(fresh_bert(), tmp_path, rate=2e-3)
    smaller = fresh_bert()
    cut(smaller, uneven(sites(smaller), 1), report=False)
    with pytest.raises(EspalierError, match=r"weights .*, now .*--fresh"):
        run(smaller, tmp_path)
    run(fresh_bert(), tmp_path, rate=2e-3, fresh=True)
    with pytest.raises(EspalierError, match=r"finished .*epochs 2, now 3"):
        run(fresh_bert(), tmp_path, rate=2e-3, epochs=3)


def nudged():
    """The same architecture and shapes, one number of all weights another."""
    model = fresh_bert()
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight[0, 0] += 1
    return model


def test_other_weights_are_another_training(tmp_path):
    says = r"fingerprint \w+, now \w+\. The model to train has other weights than then.*--fresh"
    with pytest.raises(KeyboardInterrupt):
        run(fresh_bert(), tmp_path, save_every=1, progress=stopping_at(3))
    with pytest.raises(EspalierError, match=f"interrupted .*{says}"):
        run(nudged(), tmp_path)
    model = fresh_bert()
    want = run(model, tmp_path)
    with pytest.raises(EspalierError, match=f"finished .*{says}"):
        run(nudged(), tmp_path)
    assert run(model, tmp_path, progress=stopping_at(1)) == want  # trained here, in this very program
    run(nudged(), tmp_path, fresh=True)


def test_a_folder_of_an_older_espalier_goes_on_with_a_warning(tmp_path, caplog):
    want = run(fresh_bert(), tmp_path)
    record = json.loads((tmp_path / "training.json").read_text())
    del record["settings"]["fingerprint"]
    (tmp_path / "training.json").write_text(json.dumps(record))
    assert run(nudged(), tmp_path, progress=stopping_at(1)) == want
    assert "did not note the weights" in caplog.text
    with pytest.raises(EspalierError, match=r"rate 0.001, now 0.002"):
        run(nudged(), tmp_path, rate=2e-3)


def test_stopped_before_the_first_state_of_a_fresh_start(tmp_path):
    """The model of before is no answer to it; and nothing that only it had is left over."""
    run(fresh_bert(), tmp_path)
    record = json.loads((tmp_path / "training.json").read_text())
    (tmp_path / "training.json").write_text(
        json.dumps({**record, "files": [*record["files"], "old.safetensors"]})
    )
    (tmp_path / "old.safetensors").write_text("a shard of before")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(fresh_bert(), tmp_path, fresh=True, progress=stopping_at(3))
    with pytest.raises(KeyboardInterrupt):
        run(fresh_bert(), tmp_path, progress=stopping_at(3))
    model = fresh_bert()
    run(model, tmp_path)
    assert same(transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path), model)
    assert not (tmp_path / "old.safetensors").exists()
    assert not (tmp_path / ".espalier-training").exists()


def test_two_trainings_in_one_folder_are_refused(tmp_path):
    def second(_):
        with pytest.raises(EspalierError, match="another run is writing"):
            run(fresh_bert(), tmp_path, fresh=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(fresh_bert(), tmp_path, save_every=1, progress=second)
    model, whole = fresh_bert(), fresh_bert()
    run(model, tmp_path)  # the lock is gone with the one that held it
    run(whole)
    assert same(model, whole)


@pytest.mark.parametrize("harm", ["short", "flipped", "nonsense", "without", "stranger"])
def test_a_damaged_state_says_so(harm, tmp_path):
    from safetensors.torch import save_file

    with pytest.raises(KeyboardInterrupt):
        run(fresh_bert(), tmp_path, save_every=1, progress=stopping_at(3))
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
    with pytest.raises(EspalierError, match=r"state.safetensors, cannot be used.*--fresh"):
        run(fresh_bert(), tmp_path)
    run(fresh_bert(), tmp_path, fresh=True)


def test_a_full_disk(tmp_path):
    """No file may grow beyond a few bytes: what was written before stays, and goes on later."""
    whole, model = fresh_bert(), fresh_bert()
    run(whole)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def watch(now):
        if now["step"] == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))

    try:
        with pytest.raises(EspalierError, match=r"cannot write .*File too large.*last state is kept"):
            run(model, tmp_path, save_every=4, progress=watch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert sorted(p.name for p in (tmp_path / ".espalier-training").iterdir()) == ["state.safetensors"]
    again = fresh_bert()
    run(again, tmp_path)
    assert same(again, whole)


def test_a_disk_that_is_full_in_the_end(tmp_path, monkeypatch):
    """All steps are done, the model cannot be written: only that is left to do later."""
    model = fresh_bert()

    def no_room(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(model, "save_pretrained", no_room)
    with pytest.raises(EspalierError, match=r"m: No space left on device\. .*last state is kept"):
        run(model, tmp_path / "m")
    again = fresh_bert()
    run(again, tmp_path / "m", progress=stopping_at(1))  # which never comes
    assert same(again, model)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EspalierError, match="is a file"):
        run(fresh_bert(), tmp_path / "file")
    with pytest.raises(EspalierError, match="cannot write"):
        run(fresh_bert(), tmp_path / "file" / "m")
    with pytest.raises(EspalierError, match="something else"):
        run(fresh_bert(), tmp_path, fresh=True)


# ------------------------------------------------------------------------------------------ finished


def test_a_finished_folder(tmp_path, caplog):
    model = fresh_bert()
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
    assert (record["settings"]["rate"], record["settings"]["batch"]) == (1e-3, 8)
    stamp = (tmp_path / "m" / "model.safetensors").stat().st_mtime_ns
    caplog.set_level("INFO", "espalier")
    assert run(untrained, tmp_path / "m", progress=stopping_at(1)) == want
    assert "already trained" in caplog.text
    assert (tmp_path / "m" / "model.safetensors").stat().st_mtime_ns == stamp
    assert same(untrained, model)  # it is trained, whoever did it


def test_killed_while_finishing(tmp_path, monkeypatch):
    """All steps are done, but not every file is in its place."""
    model, real = fresh_bert(), os.replace

    def replace(source, target):
        if Path(source).parent.name == "finished" and Path(target).name == "training.json":
            raise KeyboardInterrupt
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            run(model, tmp_path)
    again = fresh_bert()
    run(again, tmp_path, progress=stopping_at(1))  # which never comes: there is no step left
    assert same(again, model)
    assert not (tmp_path / ".espalier-training").exists()


# ------------------------------------------------------------------------------------------ the loop


def test_it_learns():
    history = run(fresh_bert(), epochs=12)
    losses = [row["loss"] for row in history["epochs"]]
    assert losses[-1] < 0.5 * losses[0]
    assert history["steps"] == 12 * PER_EPOCH == history["loss"][-1]["step"]
    assert history["seconds"] > 0


def test_dropout_is_on_and_the_callers_dice_are_left_alone():
    modes, model = [], fresh_bert()
    torch.manual_seed(5)
    run(model, progress=lambda now: modes.append(model.training))
    after = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(3))
    assert all(modes)
    assert not model.training
    calm = calm_bert()
    run(calm)
    assert not same(calm, model)


def test_batches_of_one_epoch():
    lengths = [(7 * i) % 53 + 3 for i in range(1003)]
    batches = order(lengths, 16, 0, 0)
    assert sorted(i for b in batches for i in b) == list(range(1003))
    assert sorted(map(len, batches)) == [11] + [16] * 62
    padded = sum(len(b) * max(lengths[i] for i in b) for b in batches)
    assert padded < 1.05 * sum(lengths)
    assert batches == order(lengths, 16, 0, 0)
    assert batches != order(lengths, 16, 0, 1)
    assert batches != order(lengths, 16, 1, 0)
    means = [sum(lengths[i] for i in b) / len(b) for b in batches]
    assert means != sorted(means)  # short ones first would be another kind of training


def test_the_rate_rises_and_falls():
    shares = [share_of_rate(step, 100, 0.1) for step in range(100)]
    assert shares[0] == 0.1
    assert shares[9] == shares[10] == max(shares) == 1
    assert shares[99] == pytest.approx(1 / 90)
    assert share_of_rate(0, 1, 0.0) == share_of_rate(0, 1, 0.1) == 1


def test_biases_and_norms_do_not_decay():
    model, accelerator = fresh_bert(), accelerator_of("fp32")
    data = data_of(model, words(), sentences(), "classification", 32)
    made = Run(model, data, {"batch": 8, "epochs": 1, "rate": 1.0, "decay": 0.1}, accelerator)
    decay = {id(p): g["weight_decay"] for g in made.optimiser.param_groups for p in g["params"]}
    for name, p in model.named_parameters():
        plain = name.endswith("bias") or "LayerNorm" in name
        assert decay[id(p)] == (0.0 if plain else 0.1), name


def test_both_precisions_in_one_program():
    model = fresh_bert()
    loss = run(model, precision="bf16")["epochs"][-1]["loss"]
    assert "forward" not in model.__dict__
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert loss == pytest.approx(run(fresh_bert())["epochs"][-1]["loss"], rel=0.05)
    assert loss != run(fresh_bert())["epochs"][-1]["loss"]


def test_frozen_weights_stay(tmp_path):
    model = fresh_bert()
    model.bert.embeddings.requires_grad_(False)
    before = model.bert.embeddings.word_embeddings.weight.clone()
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path, save_every=1, progress=stopping_at(3))
    run(model, tmp_path)
    assert torch.equal(before, model.bert.embeddings.word_embeddings.weight)
    with pytest.raises(EspalierError, match="frozen"):
        run(model.requires_grad_(False))


def measured(model):
    """As every verb measures: processes share the examples."""
    texts = sentences()
    batches = batches_of(texts, words(), "classification", length=32)
    return answer(model, batches).metrics("classification", np.array(texts.labels, dtype=float))


def half(folder):
    """One of two processes."""
    history = run(calm_bert(), folder, batch=7, save_every=3, evaluate=measured)
    print(json.dumps(history["epochs"]))


def in_two_processes(module, what, folder):
    """What the first of them says."""
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
    said = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    return json.loads(said[0][0])


def test_two_processes_are_as_good_as_one(tmp_path):
    """By 7, fifty leave one over: then one of the two has nothing to do."""
    said = in_two_processes("test_training", "half", tmp_path / "m")
    alone = calm_bert()
    want = run(alone, batch=7, evaluate=measured)["epochs"]
    for name in ("loss", "accuracy"):
        assert [row[name] for row in said] == pytest.approx([row[name] for row in want], rel=1e-2)
    found = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
    for (name, p), q in zip(found.named_parameters(), alone.parameters()):
        assert torch.allclose(p, q, atol=2e-3), name
    record = json.loads((tmp_path / "m" / "training.json").read_text())
    assert record["settings"]["processes"] == 2


# ------------------------------------------------------------------------------------------ other tasks


def test_regression_and_pairs():
    examples = sentences()
    graded = Examples(examples.texts, examples.texts[::-1], tuple(i / 50 for i in range(50)))
    model = fresh_bert(num_labels=1)
    history = train(model, words(), graded, kind="regression", **SETTINGS)
    assert history["epochs"][1]["loss"] < history["epochs"][0]["loss"]
    assert model.config.problem_type == "regression"
    with pytest.raises(EspalierError, match="num_labels=1"):
        train(fresh_bert(), words(), graded, kind="regression", **SETTINGS)


def test_language():
    model, examples = tiny("gpt2", "AutoModelForCausalLM"), sentences()
    settings = {**SETTINGS, "length": 16, "kind": "language"}
    data = data_of(model, words(), examples, "language", 16)
    line = [t for row in data.rows for t in row["input_ids"]]
    assert {len(row["input_ids"]) for row in data.rows} == {16}
    running = [int(w[1:]) + 4 for text in examples.texts for w in text.split()]
    assert line == running[: len(line)]  # as it will be measured: one text after the other
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
    good, bert = sentences(), fresh_bert()
    for examples, says in (
        (Examples((), None, ()), "empty"),
        (replace(good, labels=None), "an answer for every text"),
        (replace(good, labels=(2.0,) * 50), "label 2 does not fit this model: it has 2 classes"),
        (replace(good, labels=(0.5,) * 50), "label 0.5"),
        (replace(good, texts=("w1 " * 100,) * 50), "at most 16 tokens"),
        (replace(good, texts=(*good.texts[:-1], "")), "text 50 of 50 is empty"),
    ):
        model = fresh_bert(max_position_embeddings=16) if "at most" in says else bert
        with pytest.raises(EspalierError, match=says):
            train(model, words(), examples, **SETTINGS)
    with pytest.raises(EspalierError, match="AutoModelForSequenceClassification"):
        train(tiny("bert"), words(), good, **SETTINGS)
    with pytest.raises(EspalierError, match=r"dtype=torch\.float32"):
        run(fresh_bert().bfloat16())
    with pytest.raises(EspalierError, match="a pad_token"):
        train(bert, words(pad_token=None, eos_token=None), good, **SETTINGS)
    with pytest.raises(EspalierError, match="do not belong together"):
        train(fresh_bert(vocab_size=20), words(), good, **SETTINGS)
    for wrong in (
        {"kind": "poetry"},
        {"precision": "int3"},
        {"epochs": 0},
        {"rate": 0.0},
        {"seed": -1},
    ):
        with pytest.raises(EspalierError, match=f"{next(iter(wrong))} is"):
            run(bert, **wrong)


def test_a_loss_that_is_no_number(tmp_path):
    with pytest.raises(EspalierError, match=r"step \d+ of 14 .*learning rate 9.29e\+37. .*--fresh"):
        run(fresh_bert(), tmp_path, rate=1e38, warmup=0.0, save_every=1)


# ------------------------------------------------------------------------------------------ the verb


@pytest.fixture
def material(tmp_path):
    """A model and a file of labelled sentences, as a person has them."""
    model, examples = fresh_bert(), sentences(200)
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
    typed += ("--epochs", 2, "--rate", 1e-3, "--examples", 64, "--length", 32)
    done = verb(*typed)
    assert done.exit_code == 0
    assert "64 examples, 4 steps" in done.output
    assert "validation accuracy" in done.output
    assert "loss" in done.stderr  # the progress of it
    config = transformers.AutoConfig.from_pretrained(material / "tuned")
    assert set(config.label2id) == {"short", "long"}
    again = json.loads(verb(*typed, "--json").stdout)
    assert len(again["epochs"]) == 2
    record = json.loads((material / "tuned" / "training.json").read_text())
    assert record["origin"]["model"] == "bert"
    with pytest.raises(EspalierError, match=r"rate 0.001, now 0.1\. "):
        verb(*typed, "--rate", 0.1)
    assert verb(*typed, "--rate", 1e-4, "--fresh").exit_code == 0


def test_the_verb_gives_a_model_a_new_head(material):
    """Three classes before, two now."""
    fresh_bert(num_labels=3).save_pretrained(material / "three")
    words().save_pretrained(material / "three")
    typed = ("--task", material / "lengths.tsv", "--epochs", 1, "--length", 32)
    assert verb(material / "three", *typed, "-o", material / "two").exit_code == 0
    config = transformers.AutoConfig.from_pretrained(material / "two")
    assert config.num_labels == 2


def test_the_verb_on_a_cut_model(material):
    model = fresh_bert()
    cut(model, uneven(sites(model), 1), report=False)
    save(model, material / "cut", tokenizer=words())
    typed = ("--task", material / "lengths.tsv", "--epochs", 1, "--length", 32)
    assert verb(material / "cut", *typed, "-o", material / "again").exit_code == 0
    found = transformers.AutoModelForSequenceClassification.from_pretrained(material / "again")
    assert plan_of(found).keep == plan_of(model).keep
