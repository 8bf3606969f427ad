"""Running text with memory: streams for each row of a batch, segments in order, every word predicted once."""

import contextlib
import json
import math
import sys

import pytest
import torch
from test_training import in_two_processes
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import espalier
from espalier import tasks
from espalier.core.errors import (
    DataError,
    DependencyError,
    InvalidValueError,
    UnknownNameError,
    UnsupportedError,
)
from espalier.engine.memory import Memory, memory_length
from espalier.evaluation.predictions import predict
from espalier.experiment.latency_table import Shape
from espalier.reports.figures.layers import draw_kept
from espalier.tasks.batches import batches_of, make_segments, read_tokens
from espalier.tasks.task import Examples, Task
from espalier.tasks.words import make_tokenizer
from espalier.testing.tiny import tiny
from espalier.training import Callback, Distillation, Gates, train
from espalier.training.data import prepare_data
from espalier.training.optimizer import lr_factor

LINES = ["the cat sat on the mat", "", "a dog ran", "the mat", "on a cat the dog sat and ran"] * 12
TEXT = Examples(tuple(LINES))
WORDS = make_tokenizer(LINES)
SETTINGS = {"kind": "language", "epochs": 2, "batch_size": 3, "max_length": 8, "lr": 1e-2}


def small(kind="all_attention", **config):
    given = {"vocab_size": len(WORDS), "cutoffs": [5], "mem_length": 8, "num_attention_heads": 2}
    given |= {"hidden_size": 16, "num_hidden_layers": 2, "attention_dropout": 0.0, "hidden_dropout": 0.0}
    return tiny(kind, "AutoModelForCausalLM", **given | config)


def fit(model, **more):
    train(model, WORDS, TEXT, **{**SETTINGS, **more})
    return model


def same_weights(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))


class Stop(Callback):
    def __init__(self, step):
        self.at = step

    def after_step(self, run):
        if run.step == self.at:
            raise KeyboardInterrupt


def test_who_has_a_memory():
    assert memory_length(small()) == 8
    assert memory_length(tiny("gpt2", "AutoModelForCausalLM")) == 0
    assert memory_length(tiny("transformer_xl", "AutoModelForCausalLM", mem_length=0, same_length=False)) == 0


def test_the_last_line_has_an_end_too():
    ids = read_tokens(TEXT, WORDS)
    assert len(ids) == sum(len(line.split()) + 1 for line in LINES)
    assert ids[-1] == WORDS.eos_token_id
    assert (ids == WORDS.eos_token_id).sum() == len(LINES)


def test_segments_predict_every_word_but_the_first_once():
    ids = read_tokens(TEXT, WORDS)
    batches = make_segments(TEXT, WORDS, max_length=7)
    assert torch.cat([batch["input_ids"][0] for batch in batches]).tolist() == ids[:-1].tolist()
    assert torch.cat([batch["labels"][0, 1:] for batch in batches]).tolist() == ids[1:].tolist()
    assert len(make_segments(TEXT, WORDS, max_length=7, upto=3)) == 3
    with pytest.raises(DataError):
        make_segments(Examples(("",)), WORDS, max_length=7)


@pytest.mark.parametrize("kind", ["all_attention", "transformer_xl"])
def test_perplexity_does_not_depend_on_the_length_of_segments(kind):
    """With memory as long as the context that counts, one segment or many are the same text."""
    model = small(kind)
    found = [
        predict(model, batches_of(TEXT, WORDS, "language", max_length=n, stream=True), "language")
        for n in (1, 5, 8, 10**4)
    ]
    losses = [one.metrics("language", None)["loss"] for one in found]
    assert losses == pytest.approx([losses[-1]] * 4, rel=1e-5)
    ids = torch.from_numpy(read_tokens(TEXT, WORDS)).long()[None]
    with torch.no_grad():
        whole = model(ids, labels=ids, mems=()).loss
    assert losses[-1] == pytest.approx(whole.item(), rel=1e-5)


def test_streams_are_contiguous_and_share_no_word():
    ids = read_tokens(TEXT, WORDS)
    data = prepare_data(small(), WORDS, TEXT, "language", 8, 3)
    steps = [data.batch(numbers) for numbers in data.order(3, 0, 0)]
    assert len(steps) == data.count(3)
    for row in range(3):
        want = ids[row * data.words :][: data.words + 1]
        assert torch.cat([step["input_ids"][row] for step in steps]).tolist() == want[:-1].tolist()
        assert torch.cat([step["labels"][row, 1:] for step in steps]).tolist() == want[1:].tolist()


def test_the_order_of_training_is_that_of_the_text(tmp_path):
    """One epoch by hand, memory given from segment to segment."""
    model, by_hand = small(), small()
    train(model, WORDS, TEXT, **SETTINGS | {"epochs": 1, "warmup": 0.0, "clip": 0, "weight_decay": 0})
    data = prepare_data(by_hand, WORDS, TEXT, "language", 8, 3)
    optimizer, mems = torch.optim.AdamW(by_hand.parameters(), weight_decay=0, fused=True), ()
    by_hand.train()
    for step, numbers in enumerate(data.order(3, 0, 0)):
        optimizer.param_groups[0]["lr"] = 1e-2 * lr_factor(step, data.count(3), 0.0)
        out = by_hand(**data.batch(numbers), mems=mems, use_cache=False)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mems = out.mems
    for a, b in zip(model.parameters(), by_hand.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stop", [2, 9])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_it_resumes_bit_for_bit_with_its_memory(tmp_path, stop, optimizer):
    options = {"optimizer": optimizer, "lr_schedule": "cosine"}
    want = fit(small(attention_dropout=0.1), **options)
    place = {"folder": tmp_path / "out", "save_every": 1}
    with pytest.raises(KeyboardInterrupt):
        fit(small(attention_dropout=0.1), callback=Stop(stop), **options, **place)
    got = fit(small(attention_dropout=0.1), **options, **place)
    assert same_weights(got, want)
    assert not same_weights(small(attention_dropout=0.1), want)


def test_a_teacher_has_a_memory_of_its_own():
    teacher = small()
    seen = []
    teacher.register_forward_hook(lambda _, args, out: seen.append(len(out.mems)))
    fit(small(cutoffs=[]), loss=Distillation(small(cutoffs=[]), kind="language", hidden_weight=0.0), epochs=1)
    memory = Memory()
    with memory.carried(teacher):
        teacher(torch.zeros(1, 4, dtype=torch.long))
        teacher(torch.zeros(1, 4, dtype=torch.long))
    assert seen == [len(memory.tensors)] * 2
    assert memory.tensors[0].shape[1] == 8


def test_gates_learn_with_memory_and_resume(tmp_path):
    class Stopped(Gates):
        def after_step(self, run):
            super().after_step(run)
            if run.step == 5:
                raise KeyboardInterrupt

        def settings(self):
            return super().settings() | {"callback": "gates"}

    want = fit(small(), callback=Gates(0.5))
    place = {"folder": tmp_path / "out", "save_every": 1}
    with pytest.raises(KeyboardInterrupt):
        fit(small(), callback=Stopped(0.5), **place)
    assert same_weights(fit(small(), callback=Gates(0.5), **place), want)


def half(folder):
    """Run in two processes: gates with memory, killed once; what is left is resumed."""

    class Stopped(Gates):
        def after_step(self, run):
            super().after_step(run)
            if run.step == 7:
                raise KeyboardInterrupt

        def settings(self):
            return super().settings() | {"callback": "gates"}

    place = {"folder": folder, "save_every": 5}
    whole = fit(small(), callback=Gates(0.5))
    with contextlib.suppress(KeyboardInterrupt):
        fit(small(), callback=Stopped(0.5), **place)
    resumed = fit(small(), callback=Gates(0.5), **place)
    heads = [site.units for site in espalier.sites(resumed, "heads")]
    if torch.distributed.get_rank() == 0:
        print(json.dumps({"same": same_weights(whole, resumed), "heads": heads}))


def test_gates_in_two_processes_resume_with_the_memory_of_both(tmp_path):
    found = in_two_processes("test_streams", "half", tmp_path / "out")
    assert found["same"]
    assert sum(found["heads"]) == sum(site.units for site in espalier.sites(small(), "heads")) // 2


def test_memory_lowers_the_perplexity_of_a_copy():
    """Every half of eight words is said twice: only what reaches back can know the second."""
    generator = torch.Generator().manual_seed(0)
    lines = []
    for _ in range(300):
        drawn = torch.randint(16, (8,), generator=generator).tolist()
        lines.append(" ".join(f"w{i}" for i in drawn * 2))
    ids = {"<unk>": 0, "<eos>": 1} | {f"w{i}": i + 2 for i in range(16)}
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", eos_token="<eos>", pad_token="<eos>"
    )
    config = {"vocab_size": 18, "cutoffs": [], "hidden_size": 32, "num_attention_heads": 2}
    config |= {"num_hidden_layers": 2, "mem_length": 8, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    model = tiny("all_attention", "AutoModelForCausalLM", **config)
    texts = Examples(tuple(lines))
    train(model, words, texts, kind="language", epochs=6, batch_size=16, max_length=4, lr=1e-2)
    given = {"max_length": 4, "upto": 200}
    carried = predict(model, batches_of(texts, words, "language", stream=True, **given), "language")
    alone = predict(model, batches_of(texts, words, "language", **given), "language")
    seen = [math.exp(one.losses.mean()) for one in (carried, alone)]
    assert seen[0] < 0.8 * seen[1]


def test_a_text_too_short_for_one_segment():
    with pytest.raises(InvalidValueError) as error:
        train(small(), WORDS, Examples(("the cat sat",)), **SETTINGS)
    assert error.value.parameter == "max_length"
    with pytest.raises(InvalidValueError) as error:
        train(small(), WORDS, TEXT, **SETTINGS | {"max_length": 10**4})
    assert error.value.parameter == "max_length"


def test_without_memory_text_is_blocks(tmp_path):
    model = small(same_length=False)
    model.config.mem_length = 0
    data = prepare_data(model, WORDS, TEXT, "language", 8, 3)
    assert not hasattr(data, "words")
    before = [p.clone() for p in model.parameters()]
    fit(model, epochs=1)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, times in (("train", 8), ("valid", 2), ("test", 2)):
        (folder / f"wiki.{split}.tokens").write_text("\n".join(LINES * times) + "\n", encoding="utf-8")
    return folder


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mem_length": 8}
SMALL = {**SIZES, "num_slots": 4, "max_length": 8, "batch_size": 4}


def test_a_new_model_is_trained_from_its_type_and_resumes(corpus, tmp_path):
    tuned = espalier.train("all_attention", corpus, tmp_path / "lm", epochs=2, lr=1e-2, **SMALL)
    assert tuned.model.config.vocab_size == 11
    assert tuned.model.config.cutoffs == []
    again = espalier.train("all_attention", corpus, tmp_path / "lm", epochs=2, lr=1e-2, **SMALL)
    assert same_weights(tuned.model, again.model)
    found = espalier.evaluate(tmp_path / "lm", corpus, max_length=8)
    words = sum(len(line.split()) + 1 for line in LINES) * 2 - 1
    assert (found["test"]["words"], found["test"]["memory"]) == (words, 8)
    assert found["test"]["perplexity"] < 6
    small = espalier.prune(
        tmp_path / "lm", corpus, "gates", remove=0.5, epochs=1, folder=tmp_path / "small", max_length=8
    )
    assert sum(layer["kept"] for layer in small["layers"]) == 2


def test_a_config_without_weights_is_trained(corpus, tmp_path):
    tiny("transformer_xl", "AutoModelForCausalLM", vocab_size=11, cutoffs=[]).config.save_pretrained(tmp_path)
    tuned = espalier.train(tmp_path, corpus, epochs=1, max_length=8, batch_size=4)
    assert tuned.model.config.model_type == "transformer_xl"
    with pytest.raises(DataError):  # fewer words than the config has
        espalier.train(tmp_path, corpus, epochs=1, max_length=8, vocabulary=5)
    for verb in (espalier.evaluate, espalier.prune):
        with pytest.raises(espalier.core.errors.EspalierError):
            verb(tmp_path, corpus, max_length=8)


def test_a_type_is_no_model(corpus):
    with pytest.raises(UnsupportedError):
        espalier.evaluate("all_attention", corpus)
    with pytest.raises(UnsupportedError):
        espalier.prune("all_attention", corpus, remove=0.5)


def test_fewer_words(corpus):
    tuned = espalier.train("all_attention", corpus, epochs=1, vocabulary=6, **SMALL)
    assert tuned.model.config.vocab_size == 6


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"hidden_size": "wide"}, InvalidValueError),
        ({"hidden_width": 3}, UnknownNameError),
        ({"mem_length": 0}, InvalidValueError),
        ({"lr_schedule": "steps"}, UnknownNameError),
        ({"optimizer": "sgd"}, UnknownNameError),
        ({"lr_end": 1.0}, InvalidValueError),
    ],
)
def test_wrong_options(corpus, options, error):
    with pytest.raises(error):
        espalier.train("all_attention", corpus, epochs=1, **SMALL | options)


def test_a_new_model_needs_running_text(tmp_path):
    labelled = Task("labelled", *[Examples(("a", "b"), None, (0.0, 1.0))] * 3, classes=("x", "y"))
    with pytest.raises(UnsupportedError):
        espalier.train("all_attention", labelled, epochs=1)


def test_a_vocabulary_that_does_not_fit_a_checkpoint(corpus):
    model, task = small(), tasks.load(corpus)
    more = make_tokenizer([" ".join(LINES), "some more words than the model has"])
    wide = Task(
        "wide", task.train, Examples(("more words than some model has \n",) * 9), task.test, "language"
    )
    for verb in (espalier.train, espalier.evaluate):
        with pytest.raises(DataError):
            verb(model, wide if verb is espalier.evaluate else _with(wide), tokenizer=more, max_length=8)


def _with(task):
    return Task(task.name, task.validation, task.validation, task.test, "language")


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_schedules_count_all_steps(schedule):
    factors = [lr_factor(step, 100, 0.1, schedule, 0.2) for step in range(100)]
    assert factors[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert factors[10] == 1
    assert lr_factor(100, 100, 0.1, schedule, 0.2) == pytest.approx(1 if schedule == "constant" else 0.2)
    assert lr_factor(55, 100, 0.1, schedule, 0.2) == pytest.approx(1 if schedule == "constant" else 0.6)
    assert factors[10:] == sorted(factors[10:], reverse=True)


def test_logs_for_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged = f"tensorboard:{tmp_path / 'logs'}"
    fit(small(), callback=Gates(0.5), track=logged, evaluate=lambda m: {"validation x": 2.0})
    logs = EventAccumulator(str(tmp_path / "logs")).Reload()
    tags = logs.Tags()["scalars"]
    losses = logs.Scalars("loss")
    assert [event.step for event in losses] == list(range(1, len(losses) + 1))
    assert logs.Scalars("epoch/validation x")[-1].value == 2.0
    assert sum(logs.Scalars(tag)[-1].value for tag in tags if tag.startswith("open gates")) == 2


def test_models_are_timed_with_full_memory():
    model, seen = small(), []
    model.register_forward_hook(lambda _, args, out: seen.append(out.mems[0].shape[1]))
    espalier.measure(model, max_length=4, rounds=3)
    assert seen == [4, 8, 8, 8, 8]
    assert not model._forward_pre_hooks


def test_random_tokens_for_a_clustered_vocabulary():
    assert Shape(2, 5).batch(small())["input_ids"].shape == (2, 5)


def test_the_figure_of_layers():
    kept = {"lm": {"half": [2, 0, 1], "all": [2, 2, 2]}}
    figure = draw_kept(kept, {"lm": ("heads", [2, 2, 2])})
    (axis,) = figure.axes[:1]
    assert [line.get_ydata().tolist() for line in axis.lines][1:] == [[2, 0, 1], [2, 2, 2]]
    assert axis.get_ylabel() == "heads kept"


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(DependencyError) as error:
        fit(small(), optimizer="lamb")
    assert error.value.extra == "lamb"
