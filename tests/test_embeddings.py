"""Embedding models: the cosine of the embeddings of two texts, pruned, and read by sentence-transformers."""

import json
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import toys
from safetensors.torch import save_file
from transformers import AutoModel, AutoModelForSequenceClassification

import espalier
from espalier import Batches, criteria, sites
from espalier.core.errors import DataError, FormatError, UnsupportedError
from espalier.engine.embeddings import POOLINGS, Embedder
from espalier.engine.gate_gradients import batch_gradients
from espalier.engine.gates import gated
from espalier.experiment.embedder import as_similarity, is_embedder
from espalier.experiment.session import open_session
from espalier.storage.modules import copy_modules, read_embedder
from espalier.tasks import load as load_task
from espalier.tasks.batches import batches_of
from espalier.testing.tiny import tiny

SIZES = {"calibration": 16, "validation": 40, "test": 40, "max_length": 32}


def write_pairs(path, n=240, score=lambda draw: round(draw.uniform(0, 5), 2)):
    draw = random.Random(0)
    rows = zip(toys.sentences(n, 5), toys.sentences(n, 6), (score(draw) for _ in range(n)))
    lines = ["sentence1\tsentence2\tscore", *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_embedder(folder, pooling, normalise=True, **settings):
    model = tiny("bert")
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    model.save_pretrained(folder)
    toys.tokenizer().save_pretrained(folder)
    parts = ["Transformer", "Pooling", *(["Normalize"] if normalise else [])]
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{name}" if i else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for i, name in enumerate(parts)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    for one in listed[1:]:
        (folder / one["path"]).mkdir()
        (folder / one["path"] / "config.json").write_text("{}")
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 48, "embedding_dimension": 48, **pooling})
    )
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embeddings")
    write_embedder(folder / "embedder", {"pooling_mode": "mean"})
    write_pairs(folder / "pairs.tsv")
    return folder


def embed(folder, texts):
    """Return the embeddings of texts as this package computes them."""
    model = AutoModel.from_pretrained(folder).eval()
    embedder = read_embedder(folder)
    texts = [embedder.reads(text) for text in texts]
    batch = toys.tokenizer()(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        return embedder.embed(model(**batch), batch).numpy()


@pytest.mark.parametrize("pooling", [[one] for one in POOLINGS] + [["cls", "mean"]], ids="+".join)
def test_every_pooling_is_that_of_sentence_transformers(pooling):
    from sentence_transformers.sentence_transformer.modules import Pooling

    hidden = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 0]])
    theirs = Pooling(4, pooling)({"token_embeddings": hidden, "attention_mask": mask})["sentence_embedding"]
    ours = Embedder(tuple(pooling)).embed(_Output(hidden), {"attention_mask": mask})
    assert torch.allclose(ours, theirs, atol=1e-6)


class _Output:
    def __init__(self, hidden):
        self.last_hidden_state = hidden


@pytest.mark.parametrize(
    ("pooling", "normalise"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, True),
        ({"pooling_mode": ["cls", "mean"]}, False),
    ],
    ids=["old", "two"],
)
def test_a_pruned_embedder_embeds_alike_in_sentence_transformers(pooling, normalise, place, tmp_path):
    from sentence_transformers import SentenceTransformer

    source = write_embedder(
        tmp_path / "source", pooling, normalise, prompts={"ask": "ba de "}, default_prompt_name="ask"
    )
    found = espalier.prune(source, place / "pairs.tsv", macs=0.6, folder=tmp_path / "small", **SIZES)
    texts = toys.sentences(7, 9)
    reader = SentenceTransformer(str(tmp_path / "small"))
    theirs, ours = reader.encode(texts), embed(tmp_path / "small", texts)
    assert np.abs(theirs - ours).max() < 1e-5
    assert np.abs(ours - embed(source, texts)).max() > 1e-3  # it is another model
    assert found.facts["metric"] == "spearman"
    assert found.facts["after"]["test"].keys() >= {"spearman", "pearson", "low", "high"}
    left, right = (reader.encode(list(side)) for side in _test_pairs(place / "pairs.tsv"))
    similar = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    session = open_session(tmp_path / "small", place / "pairs.tsv", **SIZES)
    assert session.predict(session.model, "test").values == pytest.approx(similar, abs=1e-5)
    card = (tmp_path / "small" / "README.md").read_text()
    assert "pipeline_tag: sentence-similarity" in card
    assert "SentenceTransformer('small')" in card


def test_texts_are_read_in_lower_case_where_the_folder_says_so(place, tmp_path):
    from sentence_transformers import SentenceTransformer

    more = {"prompts": {"ask": "Ba De "}, "default_prompt_name": "ask"}
    source = write_embedder(tmp_path / "source", {"pooling_mode": "mean"}, **more)
    texts = [text.title() for text in toys.sentences(7, 9)]
    cased = SentenceTransformer(str(source)).encode(texts)
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 32, "do_lower_case": true}')
    lower = SentenceTransformer(str(source)).encode(texts)
    assert np.abs(lower - cased).max() > 1e-3  # the tokenizer itself keeps the case
    assert np.abs(lower - embed(source, texts)).max() < 1e-5
    rows = (place / "pairs.tsv").read_text().splitlines()
    (tmp_path / "pairs.tsv").write_text("\n".join([rows[0], *(row.title() for row in rows[1:])]) + "\n")
    reader = SentenceTransformer(str(source))
    left, right = (reader.encode(list(side)) for side in _test_pairs(tmp_path / "pairs.tsv"))
    session = open_session(source, tmp_path / "pairs.tsv", **SIZES)
    assert session.predict(session.model, "test").values == pytest.approx((left * right).sum(1), abs=1e-5)


def _test_pairs(path):
    test = load_task(path).sized(validation=40, test=40, seed=0).test
    return test.texts, test.pairs


def test_pairs_with_scores_are_similarities_for_a_model_without_a_head_only(place, tmp_path):
    task, one_text = load_task(place / "pairs.tsv"), load_task(toys_scores(tmp_path))
    assert task.kind == "regression"
    found = as_similarity(task, place / "embedder")
    assert (found.kind, found.metric) == ("similarity", "spearman")
    labels = np.array([*found.train.labels, *found.validation.labels, *found.test.labels])
    assert (min(found.train.labels), max(found.train.labels)) == (0, 1)
    assert (
        np.corrcoef(labels, [*task.train.labels, *task.validation.labels, *task.test.labels])[0, 1] > 1 - 1e-9
    )
    head = tiny("bert", "AutoModelForSequenceClassification", num_labels=1)
    head.save_pretrained(tmp_path / "head")
    (tmp_path / "head" / "modules.json").write_text((place / "embedder" / "modules.json").read_text())
    for model in (head, tmp_path / "head"):
        assert not is_embedder(model)
        assert as_similarity(task, model) is task
    assert is_embedder(tiny("bert"))
    assert as_similarity(one_text, place / "embedder") is one_text  # one text is compared with nothing


def test_training_pairs_without_scores_are_enough_to_prune_by(place, tmp_path):
    task = load_task(place / "pairs.tsv")
    task = replace(task, train=replace(task.train, labels=None))
    scale = as_similarity(task, place / "embedder").validation.labels
    assert (min(scale), max(scale)) == (0, 1)
    how = dict(calibration=16, validation=40, test=40, max_length=32)
    small = espalier.prune(place / "embedder", task, macs=0.7, **how)
    assert (small["method"], small["metric"]) == ("obs", "spearman")


def toys_scores(folder):
    rows = [f"{text}\t{i / 7:.2f}" for i, text in enumerate(toys.sentences(60))]
    (folder / "one.tsv").write_text("\n".join(["text\tscore", *rows]) + "\n")
    return folder / "one.tsv"


def test_whole_numbers_are_similarities_if_it_is_said(place, tmp_path):
    path = write_pairs(tmp_path / "whole.tsv", score=lambda draw: draw.randrange(2))
    found = espalier.evaluate(place / "embedder", path, kind="similarity", validation=40, test=40)
    assert found.facts["test"]["metric"] == "spearman"
    assert found.facts["test"]["n"] == 36
    with pytest.raises(UnsupportedError):  # two classes, and no head
        espalier.evaluate(place / "embedder", path)
    with pytest.raises(DataError):
        load_task(toys_scores(tmp_path), kind="similarity")


def test_training_an_embedder_is_refused(place, tmp_path):
    with pytest.raises(UnsupportedError):
        espalier.recover(
            place / "embedder", place / "pairs.tsv", folder=tmp_path / "small", epochs=1, **SIZES
        )


def add_module(folder, kind, config, weights=None):
    """Append a module with a config, and weights in safetensors, to the list of a folder."""
    listed = json.loads((folder / "modules.json").read_text())
    path = f"{len(listed)}_{kind}"
    listed.append(
        {"idx": len(listed), "name": path, "path": path, "type": f"sentence_transformers.models.{kind}"}
    )
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / path).mkdir()
    (folder / path / "config.json").write_text(json.dumps(config))
    if weights is not None:
        save_file(weights, folder / path / "model.safetensors")
    return folder / path


def dense(n_in, n_out, activation="torch.nn.modules.activation.Tanh", bias=True, **more):
    draw = torch.Generator().manual_seed(n_out)
    names = dict.fromkeys(("module_input_name", "module_output_name"), "sentence_embedding")
    config = {"in_features": n_in, "out_features": n_out, "bias": bias, "activation_function": activation}
    weights = {"linear.weight": torch.randn(n_out, n_in, generator=draw)}
    if bias:
        weights["linear.bias"] = torch.randn(n_out, generator=draw)
    return {**config, **names, **more}, weights


def test_dense_layers_are_applied_and_copied(place, tmp_path):
    from sentence_transformers import SentenceTransformer

    source = write_embedder(tmp_path / "source", {"pooling_mode": ["cls", "mean"]}, normalise=False)
    add_module(source, "Dense", *dense(96, 32))
    add_module(source, "Dense", *dense(32, 8, "torch.nn.modules.linear.Identity", bias=False))
    add_module(source, "Normalize", {})
    texts = toys.sentences(7, 9)
    whole = SentenceTransformer(str(source)).encode(texts)
    assert whole.shape == (7, 8)
    assert np.abs(whole - embed(source, texts)).max() < 1e-5
    espalier.save(AutoModel.from_pretrained(source), tmp_path / "same", tokenizer=toys.tokenizer())
    assert np.abs(whole - SentenceTransformer(str(tmp_path / "same")).encode(texts)).max() < 1e-6
    espalier.prune(source, place / "pairs.tsv", macs=0.6, folder=tmp_path / "small", **SIZES)
    reader = SentenceTransformer(str(tmp_path / "small"))
    assert np.abs(reader.encode(texts) - embed(tmp_path / "small", texts)).max() < 1e-5
    left, right = (reader.encode(list(side)) for side in _test_pairs(place / "pairs.tsv"))
    session = open_session(tmp_path / "small", place / "pairs.tsv", **SIZES)
    assert session.predict(session.model, "test").values == pytest.approx((left * right).sum(1), abs=1e-5)


@pytest.mark.parametrize(
    "more", [{"use_residual": True}, {"module_output_name": "other"}, {"activation_function": "mine.Tanh"}]
)
def test_a_dense_layer_of_another_form_is_refused(more, tmp_path):
    folder = write_embedder(tmp_path / "dense", {"pooling_mode": "mean"}, normalise=False)
    config, weights = dense(48, 48)
    add_module(folder, "Dense", config | more, weights)
    with pytest.raises(UnsupportedError):
        read_embedder(folder)


def test_a_dense_layer_without_its_weights_is_refused(place, tmp_path):
    folder = write_embedder(tmp_path / "dense", {"pooling_mode": "mean"}, normalise=False)
    add_module(folder, "Dense", dense(48, 8)[0])
    with pytest.raises(FormatError):
        espalier.prune(folder, place / "pairs.tsv", macs=0.6, folder=tmp_path / "small", **SIZES)
    model = AutoModel.from_pretrained(folder)
    with pytest.raises(FormatError):
        espalier.save(model, tmp_path / "small")
    assert not (tmp_path / "small").exists()
    head = AutoModelForSequenceClassification.from_pretrained(folder)  # which reads no modules
    assert not (espalier.save(head, tmp_path / "head") / "modules.json").exists()
    save_file(dense(40, 8)[1], folder / "2_Dense" / "model.safetensors")
    with pytest.raises(DataError):
        read_embedder(folder).embed(_Output(torch.zeros(2, 3, 48)), {})


def test_links_are_followed_inside_the_cache_of_the_hub_only(place, tmp_path):
    source = write_embedder(tmp_path / "source", {"pooling_mode": "mean"}, normalise=False)
    add_module(source, "Dense", *dense(48, 8))
    for home in ("blobs", "elsewhere"):
        snapshot, target = tmp_path / home / "snapshots" / "1", tmp_path / home / home
        for number, file in enumerate(path for path in sorted(source.rglob("*")) if path.is_file()):
            link = snapshot / file.relative_to(source)
            for folder in (link.parent, target, tmp_path / home / "copy"):
                folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / str(number))
            link.symlink_to(target / str(number))
    copied = copy_modules(tmp_path / "blobs" / "snapshots" / "1", tmp_path / "blobs" / "copy")
    assert {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"} <= set(copied)
    assert not any(path.is_symlink() for path in (tmp_path / "blobs" / "copy").rglob("*"))
    with pytest.raises(FormatError):  # before any work
        espalier.prune(snapshot, place / "pairs.tsv", macs=0.6, folder=tmp_path / "small", **SIZES)
    with pytest.raises(FormatError):
        copy_modules(snapshot, tmp_path / "elsewhere" / "copy")


def test_weights_of_modules_on_the_hub_are_copied(tmp_path, monkeypatch):
    """The model itself is loaded without them."""
    source = write_embedder(tmp_path / "source", {"pooling_mode": "mean"}, normalise=False)
    add_module(source, "Dense", *dense(48, 8))

    def cached(name, file, local_files_only=False, **_):
        loaded = "Dense" not in file or file.endswith("config.json") or not local_files_only
        return str(source / file) if loaded and (source / file).is_file() else None

    monkeypatch.setattr("transformers.utils.cached_file", cached)
    (tmp_path / "copy").mkdir()
    assert "2_Dense/model.safetensors" in copy_modules("someone/embedder", tmp_path / "copy")
    (source / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(FormatError):
        copy_modules("someone/embedder", tmp_path / "copy")


def test_a_module_that_is_not_known_is_refused(place, tmp_path):
    for kind in ("LSTM", "Pooling"):  # a second pooling would come after the dense layer
        folder = write_embedder(tmp_path / kind, {"pooling_mode": "mean"}, normalise=False)
        add_module(folder, "Dense", *dense(48, 8))
        add_module(folder, kind, {})
        with pytest.raises(UnsupportedError):
            read_embedder(folder)


@pytest.mark.parametrize("name", ["fisher", "gnorm", "kl", "representation", "taylor"])
def test_scores_of_pairs_do_not_depend_on_batches(name, place):
    model, embedder = AutoModel.from_pretrained(place / "embedder").eval().double(), Embedder()
    test = as_similarity(load_task(place / "pairs.tsv"), model).test
    whole = batches_of(test.take(range(6)), toys.tokenizer(), "similarity", max_length=32)
    single = [
        batch
        for i in range(6)
        for batch in batches_of(test.take([i]), toys.tokenizer(), "similarity", max_length=32)
    ]
    scored = []
    for batches in (list(whole), single):
        given = Batches(batches, embedder.loss, read=embedder.similarities)
        scored.append(criteria.load(name)(model, sites(model, "heads"), given))
    for site, want in scored[0].items():
        assert torch.allclose(scored[1][site], want, rtol=1e-6)


def test_a_comparison_of_layers_and_of_heads(place, tmp_path):
    given = dict(target="layers", methods=["alternate", "representation"], **SIZES)
    run = espalier.compare(place / "embedder", place / "pairs.tsv", folder=tmp_path / "run", **given)
    (found,) = run.results
    assert set(found.methods) == {"alternate", "representation"}
    assert (found.metric, found.examples["test"]) == ("spearman", 36)


def test_every_other_layer_goes_first():
    model = tiny("bert", num_hidden_layers=6)
    found = sites(model, "layers")
    (scores,) = criteria.load("alternate")(model, found, []).values()
    assert scores.argsort().tolist() == [5, 3, 1, 4, 2, 0]
    (kept,) = criteria.load("alternate")(model, found, [], keep_last=True).values()
    assert kept.argsort().tolist() == [4, 2, 0, 5, 3, 1]


def test_a_folder_comes_before_the_task_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stsb").mkdir()
    for split in ("train", "dev", "test"):
        write_pairs(tmp_path / "stsb" / f"{split}.tsv", n=30)
    with pytest.raises(DataError):  # the three are the same pairs
        load_task("stsb")
    for seed, split in enumerate(("train", "dev", "test")):
        rows = zip(toys.sentences(30, seed), toys.sentences(30, seed + 9))
        lines = [f"{a}\t{b}\t{i / 6:.2f}" for i, (a, b) in enumerate(rows)]
        (tmp_path / "stsb" / f"{split}.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *lines]))
    task = load_task("stsb")
    assert (task.name, task.kind, task.metric, len(task.test)) == ("stsb", "regression", "spearman", 30)


def test_a_model_without_a_pooler_is_pruned_and_loads(place, tmp_path):
    """Embeddings do not read it; a random one would make another model of it in every process."""
    from sentence_transformers import SentenceTransformer

    folder = write_embedder(tmp_path / "bare", {"pooling_mode": "mean"})
    model = AutoModel.from_pretrained(folder)
    model.pooler = None
    model.save_pretrained(folder)
    first, second = (open_session(folder, place / "pairs.tsv", **SIZES).fingerprint for _ in range(2))
    assert first == second
    espalier.prune(folder, place / "pairs.tsv", macs=0.6, folder=tmp_path / "small", **SIZES)
    texts = toys.sentences(5, 9)
    theirs = SentenceTransformer(str(tmp_path / "small")).encode(texts)
    assert np.abs(theirs - embed(tmp_path / "small", texts)).max() < 1e-5


def test_two_texts_with_one_score_are_one_example():
    """Gradients of both texts are added before they are squared; groups of examples count pairs."""
    model, embedder = tiny("bert").eval(), Embedder()
    found = sites(model, "heads", "neurons")
    ids = torch.randint(5, 40, (6, 9), generator=torch.Generator().manual_seed(1))
    scores = torch.tensor([0.1, 0.9, 0.4])
    data = Batches([{"input_ids": ids, "scores": scores}], loss=embedder.loss, read=embedder.similarities)
    assert (data.examples, data.predictions) == (6, 3)
    each = {site.name: [] for site in found}
    for pair in range(3):
        batch = {"input_ids": ids[2 * pair : 2 * pair + 2], "scores": scores[pair : pair + 1]}
        with gated(found) as gates:
            loss = embedder.loss(model(input_ids=batch["input_ids"]), batch)
        grads = torch.autograd.grad(loss, list(gates.values()))
        for name, grad in zip(gates, grads):
            each[name].append(grad.double())
    wanted = {name: torch.stack(grads).square().mean(0) for name, grads in each.items()}
    got = criteria.load("fisher")(model, found, data)
    for name in wanted:
        torch.testing.assert_close(got[name].double(), wanted[name], rtol=1e-3, atol=1e-12)
    two = batch_gradients(model, found, data, 2)
    for name, grads in each.items():
        expected = torch.stack([(grads[0] + grads[1]) / 2, grads[2]])
        torch.testing.assert_close(two[name], expected, rtol=1e-3, atol=1e-9)
