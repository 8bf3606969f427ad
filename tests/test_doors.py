"""Cut models behind the doors of other libraries: pipelines, sentence-transformers, SetFit, lm_eval."""

import json

import numpy as np
import pytest
import torch
import toys
from transformers import AutoModel, AutoModelForCausalLM, pipeline

from espalier import Batches, Mask, criteria, cut, load, remove_lowest, save, sites
from espalier.core.errors import FormatError
from espalier.storage.modules import copy_modules
from espalier.testing.tiny import tiny

PAIRS = list(zip(toys.sentences(12, 1), toys.sentences(12, 2)))


def half_of_the_heads(model):
    heads = sites(model, "heads")
    mask = Mask.ones(heads)
    for number, site in enumerate(heads):
        mask[site.name][number:] = False  # no head, one, two
    return cut(model, mask, report=False)


def test_a_pipeline_reads_a_cut_folder(tmp_path):
    model = half_of_the_heads(tiny("bert", "AutoModelForSequenceClassification"))
    save(model, tmp_path / "small", tokenizer=toys.tokenizer())
    classify = pipeline("text-classification", str(tmp_path / "small"))
    text = toys.sentences(1)[0]
    with torch.no_grad():
        logits = model(**toys.tokenizer()(text, return_tensors="pt")).logits
    found = classify(text)[0]
    assert found["score"] == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    """A sentence-transformers folder: a model, mean pooling, normalisation."""
    import sentence_transformers as transformers

    folder = tmp_path_factory.mktemp("doors") / "embedder"
    tiny("bert").save_pretrained(folder)
    toys.tokenizer().save_pretrained(folder)
    parts = [("Transformer", "", {}), ("Pooling", "1_Pooling", {}), ("Normalize", "2_Normalize", {})]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path, _) in enumerate(parts)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for _, path, _ in parts[1:]:
        (folder / path).mkdir()
    pooling = {
        "word_embedding_dimension": 48,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "2_Normalize" / "config.json").write_text("{}")
    return transformers.SentenceTransformer, folder


def test_sentence_transformers_reads_a_cut_folder(embedder, tmp_path):
    """Pruned by how far cosine similarities of pairs move; pooling and normalisation are kept."""
    reader, folder = embedder
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), toys.tokenizer()
    texts = [text for pair in PAIRS for text in pair]
    wanted = reader(str(folder)).encode(texts)
    batch = dict(tokenizer(texts, padding=True, return_tensors="pt"))
    batch["labels"] = torch.tensor(wanted[::2] * wanted[1::2]).sum(-1) + 0.1

    def loss(out, batch):
        weights = batch["attention_mask"][..., None]
        pooled = (out.last_hidden_state * weights).sum(1) / weights.sum(1)
        similar = torch.cosine_similarity(pooled[::2], pooled[1::2])
        return (similar - batch["labels"]).square().mean()

    heads = sites(model, "heads")
    scores = criteria.load("taylor")(model, heads, Batches([batch], loss=loss))
    cut(model, remove_lowest(scores, 0.5), report=False)
    save(model, tmp_path / "small", tokenizer=tokenizer)
    small = reader(str(tmp_path / "small"))
    found = small.encode(texts)
    assert [type(module).__name__ for module in small] == ["Transformer", "Pooling", "Normalize"]
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)
    with torch.no_grad():
        hidden = model(**{name: batch[name] for name in ("input_ids", "attention_mask")}).last_hidden_state
    weights = batch["attention_mask"][..., None]
    pooled = torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1))
    assert np.abs(found - pooled.numpy()).max() < 1e-5
    assert np.abs(found - wanted).max() > 1e-3  # it is the cut one
    again = load(tmp_path / "small")
    save(again, tmp_path / "again")
    assert (tmp_path / "again" / "1_Pooling" / "config.json").is_file()


def test_a_setfit_head_on_a_cut_body(embedder, tmp_path):
    import setfit
    from sklearn.linear_model import LogisticRegression

    reader, folder = embedder
    save(
        half_of_the_heads(AutoModel.from_pretrained(folder).eval()),
        tmp_path / "small",
        tokenizer=toys.tokenizer(),
    )
    body = reader(str(tmp_path / "small"))
    texts, labels = toys.sentences(20), [0, 1] * 10
    head = LogisticRegression().fit(body.encode(texts), labels)
    whole = setfit.SetFitModel(model_body=body, model_head=head)
    assert np.asarray(whole.predict(texts)).tolist() == head.predict(body.encode(texts)).tolist()


def test_lm_eval_takes_a_cut_language_model(tmp_path):
    from lm_eval.api.instance import Instance
    from lm_eval.models import huggingface

    model = half_of_the_heads(tiny("gpt2", "AutoModelForCausalLM"))
    save(model, tmp_path / "lm", tokenizer=toys.tokenizer())
    small = AutoModelForCausalLM.from_pretrained(tmp_path / "lm")
    judge = huggingface.HFLM(pretrained=small, tokenizer=toys.tokenizer(), backend="causal", batch_size=1)
    context, rest = "ba de", " fi go"
    ((found, _),) = judge.loglikelihood(
        [Instance("loglikelihood", {}, (context, rest), 0)], disable_tqdm=True
    )
    before, after = judge._encode_pair(context, rest)
    whole = torch.tensor([before + after])
    with torch.no_grad():
        chances = model(whole).logits.log_softmax(-1)[0]
    wanted = sum(float(chances[i - 1, whole[0, i]]) for i in range(len(before), whole.shape[1]))
    assert found == pytest.approx(wanted, abs=1e-3)


def test_modules_are_copied_from_inside_the_folder_only(tmp_path):
    source, place = tmp_path / "source", tmp_path / "place"
    for folder in (source, place, source / "1_Pooling", tmp_path / "outside"):
        folder.mkdir()
    assert copy_modules(source, place) == []
    (source / "1_Pooling" / "config.json").write_text("{}")
    (tmp_path / "outside" / "secret").write_text("secret")
    (source / "1_Pooling" / "link").symlink_to(tmp_path / "outside" / "secret")
    (source / "modules.json").write_text('[{"path": ""}, {"path": "1_Pooling"}]')
    assert copy_modules(source, place) == ["modules.json", "1_Pooling/config.json"]
    for path in ("../outside", "/etc", "a/b", ".."):
        (source / "modules.json").write_text(json.dumps([{"path": path}]))
        with pytest.raises(FormatError):
            copy_modules(source, place)
    (source / "modules.json").write_text('{"path": 3}')
    with pytest.raises(FormatError):
        copy_modules(source, place)


def test_energy_is_read_where_the_system_tells(tmp_path):
    from espalier.evaluation.energy import joules_between, read_counters

    assert joules_between(read_counters(tmp_path), read_counters(tmp_path)) is None
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of the package
    (zone / "energy_uj").write_text("9000000")
    (zone / "max_energy_range_uj").write_text("9999999")
    first = read_counters(tmp_path)
    (zone / "energy_uj").write_text("9500000")
    second = read_counters(tmp_path)
    (zone / "energy_uj").write_text("1500000")
    assert joules_between(first, second) == 0.5
    assert joules_between(second, read_counters(tmp_path)) == 2  # it starts again


def test_energy_is_that_of_the_timed_passes(monkeypatch):
    """Not of those that warm up, and not of another model."""
    from espalier.evaluation import latency

    used = [0]

    class Hungry(torch.nn.Linear):
        def forward(self, input_ids):
            self.calls += 1
            used[0] += 1_000_000 * (self.out_features if self.calls > 2 else 100)

    models = [Hungry(1, 3), Hungry(1, 5)]
    for one in models:
        one.calls = 0
    monkeypatch.setattr(latency, "read_counters", lambda: {"package": (used[0], 10**12)})
    found = latency.time_models(models, {"input_ids": torch.ones(1, 1)}, rounds=4, warmup=2)
    assert [one.joules for one in found] == [3, 5]
    monkeypatch.setattr(latency, "read_counters", dict)
    assert latency.time_models(models, {"input_ids": torch.ones(1, 1)}, rounds=1)[0].joules is None


def test_another_model_is_first_in_every_round():
    from espalier.evaluation.latency import time_rounds

    order = []

    class Noted(torch.nn.Linear):
        def forward(self, input_ids):
            order.append(self.out_features)

    models = [Noted(1, 1), Noted(1, 2), Noted(1, 3)]
    assert time_rounds(models, {"input_ids": torch.ones(1, 1)}, rounds=3, warmup=0).shape == (3, 3)
    assert order == [1, 2, 3, 2, 3, 1, 3, 1, 2]


def test_points_that_no_other_beats():
    from espalier.reports.measurement import pareto

    points = [(3.0, 0.9), (1.0, 0.8), (2.0, 0.7), (2.5, 0.85), (3.0, 0.95)]
    assert pareto(points) == [1, 3, 4]
    assert pareto([(1.0, 10.0), (2.0, 12.0), (3.0, 8.0)], lower=True) == [0, 2]
