"""The recipes of All-attention: published values, and the three steps done on a small corpus."""

import json

import pytest
from commands import data
from test_streams import LINES

import espalier
from espalier.core.errors import FormatError, UnknownNameError
from espalier.models.configuration import AllAttentionConfig
from espalier.reproductions.all_attention import steps

SMALL = """
about = "a small one"
[model]
type = "all_attention"
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
num_slots = 4
mem_length = 8
[data]
max_length = 8
[train]
epochs = 2
batch_size = 4
lr = 0.01
lr_schedule = "cosine"
[prune]
penalties = [0.0, 50.0]
epochs = 1
batch_size = 4
lr = 0.001
lr_schedule = "constant"
clip = 0.5
until = 1.0
[measure]
rounds = 2
"""


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, times in (("train", 8), ("valid", 2), ("test", 2)):
        (folder / f"wiki.{split}.tokens").write_text("\n".join(LINES * times) + "\n", encoding="utf-8")
    return folder


def test_the_published_values():
    recipe = steps.load("all-attention")
    usual = AllAttentionConfig()
    assert all(getattr(usual, name) == value for name, value in recipe.model.items() if name not in ("type",))
    train, prune = recipe.train, recipe.prune
    assert (train["optimizer"], train["lr"], train["lr_end"], train["epochs"]) == ("lamb", 0.01, 0.001, 20)
    assert (prune["penalties"], prune["init"], prune["lr"]) == ([0.01, 0.015, 0.02], 2.0, 1e-4)
    assert prune["gate_lr"] == 10 * prune["lr"]
    assert prune["warmup"] * prune["epochs"] == 1
    assert sum(recipe.published["heads"]) == 106 + 87 + 59
    assert [row["recipe"] for row in steps.rows()] == ["all-attention", "transformer-xl"]


def test_three_steps_and_again(corpus, tmp_path, caplog):
    (tmp_path / "mine.toml").write_text(SMALL)
    found = espalier.reproduce(tmp_path / "mine.toml", corpus, tmp_path / "out")
    free, closed = found["pruned"]
    assert free["heads"] == sum(free["layers"]) == 4
    assert closed["heads"] == 0  # so high a penalty closes every gate, and the model still runs
    assert closed["parameters"] < free["parameters"]
    assert free["test perplexity after"] < closed["test perplexity after"]
    assert len(found["speed"]["models"]) == 3
    assert "every gate is closed" in caplog.text
    written = json.loads((tmp_path / "out" / "result.json").read_text())
    assert written["pruned"] == found["pruned"]
    again = espalier.reproduce(tmp_path / "mine.toml", corpus, tmp_path / "out")
    assert again["pruned"] == found["pruned"]  # finished trainings are recognised


def test_the_command_and_wrong_recipes(corpus, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL.replace("penalties", "penalty"))
    with pytest.raises(FormatError):
        espalier.reproduce(tmp_path / "mine.toml", corpus, tmp_path / "out")
    with pytest.raises(UnknownNameError):
        espalier.reproduce("all-attentions", corpus, tmp_path / "out")
    assert "all-attention" in json.dumps(data("list", "recipes"))
