"""A cut model is an ordinary model: Trainer and accelerate train, save and load it."""

import torch
import transformers
from transformers import Trainer, TrainingArguments

from espalier import cut, load, plan_of, save, sites
from espalier.testing.tiny import tiny, uneven


def data(n=8):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 64, (n, 9), generator=generator)
    return [{"input_ids": i, "labels": torch.tensor(k % 2)} for k, i in enumerate(ids)]


def train(model, folder, **more):
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=2,
        per_device_train_batch_size=4,
        save_steps=1,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **more,
    )
    trainer = Trainer(model=model, args=args, train_dataset=data())
    return trainer, trainer.train(resume_from_checkpoint=more.get("resume_from_checkpoint"))


def test_trainer_on_a_cut_model(tmp_path):
    model = tiny("bert", "AutoModelForSequenceClassification")
    cut(model, uneven(sites(model), 1), report=False)
    before = [p.clone() for p in model.parameters()]
    trainer, result = train(model, tmp_path)
    assert torch.isfinite(torch.tensor(result.training_loss))
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))
    found = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "checkpoint-2")
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), trainer.model.parameters()))
    assert plan_of(found).keep == plan_of(model).keep


def test_trainer_on_a_loaded_model(tmp_path):
    model = tiny("bert", "AutoModelForSequenceClassification")
    cut(model, uneven(sites(model), 1), report=False)
    save(model, tmp_path / "m")
    trainer, _ = train(load(tmp_path / "m"), tmp_path / "run", gradient_checkpointing=True)
    trainer.save_model(tmp_path / "out")
    transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")


def test_accelerate_on_a_cut_model():
    from accelerate import Accelerator

    model = tiny("gpt2", "AutoModelForCausalLM")
    cut(model, uneven(sites(model), 2), report=False)
    accelerator = Accelerator(cpu=True)
    model, optimiser = accelerator.prepare(model.train(), torch.optim.AdamW(model.parameters(), lr=1e-3))
    ids = torch.stack([row["input_ids"] for row in data()])
    losses = []
    for _ in range(5):
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
