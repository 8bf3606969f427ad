"""Small classifiers, what they are calibrated on, and a model that is one matrix."""

import torch
from torch import nn

from espalier import Batches, criteria
from espalier.architectures.site import WeightSite
from espalier.testing.tiny import inputs, tiny

CLASSIFIER = "AutoModelForSequenceClassification"
FAMILIES = ("bert", "gpt2", "albert", "gpt_neox", "deberta-v2", "opt")
CALIBRATED = tuple(name for name in criteria.names("weights") if criteria.load(name).needs_data)
WITH_INPUTS = tuple(name for name in CALIBRATED if criteria.load(name).reads_inputs)


def classifier(kind="bert", **config):
    """In float64, so that a small difference of losses has digits left."""
    return tiny(kind, CLASSIFIER, **config).double()


def given_to(model, n=6, tokens=7):
    """Right-padded, every row another length: that is what padding more must not change."""
    given = {k: v for k, v in inputs(model, batch=n, tokens=tokens).items() if torch.is_tensor(v)} | {
        "labels": torch.arange(n) % 2
    }
    if "input_ids" in given:
        given["attention_mask"] = (torch.arange(tokens) < tokens - torch.arange(n)[:, None] % 4).long()
        given["input_ids"] = given["input_ids"] * given["attention_mask"]  # 0 is the padding's
    return given


def split(given, sizes):
    cuts = torch.tensor(sizes).cumsum(0)[:-1]
    parts = {k: v.tensor_split(cuts) for k, v in given.items()}
    return Batches({k: v[i] for k, v in parts.items()} for i in range(len(sizes)))


def padded(given, more=3):
    wide = {k: nn.functional.pad(v, (0, more)) for k, v in given.items() if v.dim() == 2}
    return {**given, **wide}


def gradients(model, found, given):
    weights = [site.linear.weight for site in found]
    for weight in weights:
        weight.requires_grad_()
    grads = torch.autograd.grad(model(**given).loss, weights, allow_unused=True)
    return {s.name: torch.zeros(s.shape) if g is None else g for s, g in zip(found, grads)}


def one_by_one(given):
    return split(given, (1,) * len(given["labels"]))


def close(got, want, rtol=1e-6, atol=1e-14):
    torch.testing.assert_close(got.double(), want.double(), rtol=rtol, atol=atol)


class Toy(nn.Module):
    """One matrix that reads what it is given; that is all these criteria know of a model."""

    def __init__(self, weight):
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.linear.weight.data = weight.clone()
        self.config = None

    @property
    def base_model(self):
        return self

    def forward(self, x):
        return self.linear(x)


def toy(rows=24, width=40, tokens=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(width, width, generator=generator).double()
    x = torch.randn(1, tokens, width, generator=generator).double() @ (mix / width**0.5)
    model = Toy(torch.randn(rows, width, generator=generator).double())
    return model, WeightSite("toy/linear", model.linear), Batches([{"x": x}])
