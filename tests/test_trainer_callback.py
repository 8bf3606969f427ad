"""Pruning while the Trainer of transformers trains."""

import pytest
import torch
import transformers
from test_training import bert_without_dropout, sentences, words

import espalier
from espalier.core.errors import InvalidValueError, UnknownNameError
from espalier.training.held_mask import mask_of_zeros
from espalier.training.trainer_callback import PruneCallback


def rows(n=24):
    tokenizer, made = words(), sentences(n)
    encoded = [tokenizer(text, truncation=True, max_length=16) for text in made.texts]
    return [{**row, "labels": int(label)} for row, label in zip(encoded, made.labels)]


def trainer(folder, callback, model=None, **more):
    how = dict(max_steps=8, per_device_train_batch_size=8, learning_rate=1e-3, report_to=[], seed=3)
    how |= dict(use_cpu=True, save_strategy="no", logging_steps=4, disable_tqdm=True)
    args = transformers.TrainingArguments(str(folder), **how | more)
    return transformers.Trainer(
        model or bert_without_dropout(),
        args,
        train_dataset=rows(),
        eval_dataset=rows(8),
        data_collator=transformers.DataCollatorWithPadding(words()),
        callbacks=[callback] if callback else [],
    )


@pytest.mark.parametrize(("target", "method"), [("heads", None), ("neurons", "magnitude")])
def test_units_are_cut_at_the_end(target, method, tmp_path):
    seen = []

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            seen.append(callback.inner.mask.kept)

    callback = PruneCallback(target, remove=0.5, method=method, mask_interval=2, examples=8)
    one = trainer(tmp_path, callback)
    one.add_callback(Watch())
    units = sum(site.units for site in espalier.sites(one.model, target))
    one.train()
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 0.5
    assert sum(site.units for site in espalier.sites(one.model, target)) == units // 2
    logged = [row["removed"] for row in one.state.log_history if "removed" in row]
    assert logged[-1] == 0.5
    assert all(0 < value <= 0.5 for value in logged)
    batch = one.data_collator(rows()[:4])
    one.save_model(tmp_path / "small")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "small")
    with torch.no_grad():
        want = one.model.eval()(**batch).logits
        assert torch.equal(again.eval()(**batch).logits, want)


def test_weights_are_zero_after_every_step_and_at_the_end(tmp_path):
    one = trainer(tmp_path, PruneCallback("weights", remove=0.6, scope="layer"))
    one.train()
    for mask in mask_of_zeros(espalier.sites(one.model, "weights")).values():
        assert mask.float().mean() == pytest.approx(0.4, abs=0.01)
    optimizer = one.optimizer.optimizer
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize(("target", "method"), [("heads", "magnitude"), ("weights", "magnitude")])
def test_a_resumed_training_ends_as_one_that_was_not_stopped(target, method, tmp_path):
    how = dict(remove=0.5, method=method, mask_interval=1)
    whole = trainer(tmp_path / "whole", PruneCallback(target, **how))
    whole.train()
    first = trainer(tmp_path / "m", PruneCallback(target, **how), save_strategy="steps", save_steps=3)
    first.train()
    second = trainer(tmp_path / "m", PruneCallback(target, **how))
    second.train(resume_from_checkpoint=str(tmp_path / "m" / "checkpoint-3"))
    want = whole.model.state_dict()
    assert all(torch.equal(value, want[name]) for name, value in second.model.state_dict().items())


def test_drawing_examples_does_not_change_the_order_of_the_training(tmp_path):
    alone = trainer(tmp_path, None)
    alone.train()
    pruned = trainer(tmp_path, PruneCallback("heads", remove=0.0, method="taylor"))
    pruned.train()
    want = alone.model.state_dict()
    assert all(torch.equal(value, want[name]) for name, value in pruned.model.state_dict().items())


def test_wrong_requests_are_refused(tmp_path):
    for wrong in ({"target": "slots"}, {"method": "wanda"}, {"method": "gates"}, {"examples": 0}):
        with pytest.raises(InvalidValueError):
            PruneCallback(**{"remove": 0.5, **wrong})
    for wrong in ({"remove": 1.5}, {"until": 2.0}, {"initial": 0.8}):
        with pytest.raises(InvalidValueError):
            PruneCallback(**{"remove": 0.5, **wrong})
    with pytest.raises(UnknownNameError):
        PruneCallback(remove=0.5, schedule="cubicc")
    best = dict(load_best_model_at_end=True, eval_strategy="steps", save_strategy="steps", eval_steps=4)
    one = trainer(tmp_path, PruneCallback(remove=0.5), save_steps=4, **best)
    with pytest.raises(InvalidValueError):
        one.train()
