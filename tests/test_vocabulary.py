"""Fewer tokens: covered text gets the same tokens, renumbered, and the model bit for bit the same outputs."""

import json
from functools import cache

import pytest
import torch
import toys
import transformers
from commands import data
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import espalier
from espalier import tasks
from espalier.core.errors import DataError, InvalidValueError, UnknownNameError, UnsupportedError
from espalier.pruning.scripts import scripts_of, tokens_of_scripts
from espalier.pruning.tokenizer import backend_of, letters_of, trim_tokenizer
from espalier.pruning.vocabulary import complete, trim_model, trim_vocabulary
from espalier.testing.tiny import tiny

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
KINDS = ("wordpiece", "bytes", "llama", "clip", "unigram")
OTHERS = [
    "Η γάτα κάθεται στο χαλί και κοιτάζει τη βροχή από το παράθυρο",
    "Кошка сидит на ковре и смотрит в окно на дождь",
    "die Katze sitzt müde auf dem großen Teppich und schaut in den Regen",
]


@cache
def reviews():
    return tuple(tasks.load("demo").train.texts)


@cache
def made(kind):
    """Return a tokenizer of one kind, trained on reviews and sentences in other scripts."""
    texts = [*reviews()[:900], *OTHERS * 30]
    if kind == "wordpiece":
        one = Tokenizer(models.WordPiece(unk_token="<unk>"))
        one.normalizer, one.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        one.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=1500, special_tokens=SPECIAL, show_progress=False)
    elif kind == "bytes":
        one = Tokenizer(models.BPE())
        one.pre_tokenizer, one.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=1500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        )
    elif kind == "llama":  # merges with bytes for what has no token
        one = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        one.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        one.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
        one.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        names = [f"<0x{i:02X}>" for i in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=1800, special_tokens=[*SPECIAL, *names], limit_alphabet=60, show_progress=False
        )
    elif kind == "clip":  # merges that know the end of a word
        one = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
        one.normalizer, one.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
        one.decoder = decoders.BPEDecoder("</w>")
        trainer = trainers.BpeTrainer(
            vocab_size=1500, special_tokens=SPECIAL, end_of_word_suffix="</w>", show_progress=False
        )
    else:
        one = Tokenizer(models.Unigram())
        one.normalizer, one.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
        one.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=1500, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
        )
    one.train_from_iterator(texts, trainer)
    one.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", one.token_to_id("<s>")), ("</s>", one.token_to_id("</s>"))],
    )
    one.add_tokens(["espalier"])
    one.add_special_tokens(["<mask>"])
    one.enable_padding(pad_id=1, pad_token="<pad>")
    names = dict(bos="<s>", cls="<s>", eos="</s>", sep="</s>", pad="<pad>", unk="<unk>", mask="<mask>")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=one, **{f"{name}_token": token for name, token in names.items()}
    )


def model_for(tokenizer, kind="bert", top="AutoModelForSequenceClassification", **config):
    named = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2, vocab_size=len(tokenizer) + 7)
    return tiny(kind, top, **named | config)


def trimmed(model, tokenizer, texts, add=()):
    ids = {i for row in tokenizer(list(texts))["input_ids"] for i in row} | set(add)
    return trim_vocabulary(model, tokenizer, complete(model, tokenizer, ids, letters_of(tokenizer, texts)))


def batch(tokenizer, texts):
    return dict(tokenizer(list(texts), padding=True, truncation=True, max_length=60, return_tensors="pt"))


# --------------------------------------------------------------------------------------- tokenizers


@pytest.mark.parametrize("kind", KINDS)
def test_covered_text_gets_the_same_tokens_and_new_text_can_be_spelled(kind, tmp_path):
    whole, texts = made(kind), reviews()[:60]
    model = model_for(whole)
    _, tokenizer, numbers = trimmed(model, whole, texts)
    assert len(tokenizer) == len(numbers) < 0.75 * len(whole)
    pairs = texts[1:] + texts[:1]
    before, after = whole(list(texts), list(pairs)), tokenizer(list(texts), list(pairs))
    assert after["input_ids"] == [[numbers[i] for i in row] for row in before["input_ids"]]
    assert len(set(numbers.values())) == len(numbers)
    assert [*numbers.values()] == sorted(numbers.values())
    covered = [text for text in reviews()[60:500] if all(i in numbers for i in whole(text)["input_ids"])]
    assert covered
    for text in covered:  # none of these was read
        assert tokenizer(text)["input_ids"] == [numbers[i] for i in whole(text)["input_ids"]]
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == whole.decode(whole(text)["input_ids"])
    unknown = tokenizer.unk_token_id
    assert unknown not in tokenizer("a new woord of oldd letterss")["input_ids"]
    tokenizer.save_pretrained(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again(list(texts))["input_ids"] == tokenizer(list(texts))["input_ids"]
    assert again.get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("XLMRobertaTokenizer", "unigram"),
        ("T5Tokenizer", "unigram"),  # has a hundred tokens of its own
        ("MBartTokenizer", "unigram"),  # and codes of languages
        ("DebertaV2Tokenizer", "unigram"),
        ("GPT2Tokenizer", "bytes"),
        ("Qwen2Tokenizer", "bytes"),
        ("LlamaTokenizer", "llama"),
        ("BertTokenizer", "wordpiece"),
        ("CLIPTokenizer", "clip"),
    ],
)
def test_the_classes_of_tokenizers_stay(name, kind, tmp_path):
    made(kind).save_pretrained(tmp_path)
    whole, texts = getattr(transformers, name).from_pretrained(tmp_path), list(reviews()[:20])
    _, small, numbers = trimmed(model_for(whole), whole, texts)
    small.save_pretrained(tmp_path / "small")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "small")
    assert type(again) is type(small) is type(whole)
    assert again(texts)["input_ids"] == [[numbers[i] for i in row] for row in whole(texts)["input_ids"]]


@pytest.mark.parametrize("kind", KINDS)
def test_special_and_added_tokens_stay(kind):
    whole = made(kind)
    _, small, numbers = trimmed(model_for(whole), whole, ["a"])
    for name in whole.special_tokens_map:
        assert getattr(small, name) == getattr(whole, name)
        assert getattr(small, f"{name}_id") == numbers[getattr(whole, f"{name}_id")]
    assert small.tokenize("a espalier <mask>") == whole.tokenize("a espalier <mask>")
    assert batch(small, ["a", "a a a"])["input_ids"][0, -1] == small.pad_token_id
    if kind in ("bytes", "llama"):  # whatever is written can be read again
        assert small.decode(small("日本語 🌱", add_special_tokens=False)["input_ids"]).strip() == "日本語 🌱"


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS), first=st.integers(0, 2000), words=st.lists(st.integers(0, 400), max_size=8)
)
def test_any_text_of_kept_tokens_is_tokenised_as_before(kind, first, words):
    """Also words that no text had: put together from others, in every order."""
    whole = made(kind)
    _, small, numbers = small_of(kind)
    pool = " ".join(reviews()[:200]).split()
    text = "".join(pool[i] for i in words) + " " + " ".join(pool[i + first % 100] for i in words)
    ids = whole(text)["input_ids"]
    if all(i in numbers for i in ids):
        assert small(text)["input_ids"] == [numbers[i] for i in ids]


@cache
def small_of(kind):
    return trimmed(model_for(made(kind)), made(kind), reviews()[:200])


def test_merges_are_consistent_and_in_their_order():
    whole = made("bytes")
    small = backend_of(small_of("bytes")[1])["model"]
    old = [tuple(pair) for pair in backend_of(whole)["model"]["merges"]]
    new = [tuple(pair) for pair in small["merges"]]
    assert new == [pair for pair in old if pair in set(new)]
    assert all({a, b, a + b} <= small["vocab"].keys() for a, b in new)
    built = {a + b for a, b in new}
    assert all(len(t) == 1 or t in built for t in small["vocab"] if t not in SPECIAL)


def test_older_forms_of_merges_and_postprocessors():
    one = Tokenizer(
        models.BPE({"<s>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5, "</s>": 6}, [("a", "b")])
    )
    one.post_processor = processors.RobertaProcessing(("</s>", 6), ("<s>", 0))
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=one, bos_token="<s>", eos_token="</s>")
    small, numbers = trim_tokenizer(whole, {0, 1, 2, 4, 6})
    assert small("ab")["input_ids"] == [0, 3, 4]
    assert numbers == {0: 0, 1: 1, 2: 2, 4: 3, 6: 4}


# ------------------------------------------------------------------------------------------- models

TOPS = [
    ("bert", "AutoModelForSequenceClassification", {}),
    ("bert", "AutoModelForMaskedLM", {}),  # tied, with a bias of the decoder
    ("xlm-roberta", "AutoModelForMaskedLM", {}),
    ("distilbert", "AutoModelForMaskedLM", {"tie_word_embeddings": False}),
    ("gpt2", "AutoModelForCausalLM", {}),
    ("llama", "AutoModelForCausalLM", {"tie_word_embeddings": False}),
    ("bart", "AutoModelForSeq2SeqLM", {"decoder_start_token_id": 2}),  # final_logits_bias
    ("t5", "AutoModelForSeq2SeqLM", {"decoder_start_token_id": 1}),
    ("t5", "AutoModelForSeq2SeqLM", {"decoder_start_token_id": 1, "tie_word_embeddings": False}),
]


@pytest.mark.parametrize(("kind", "top", "config"), TOPS)
def test_outputs_are_bit_for_bit_the_same(kind, top, config, tmp_path):
    whole, texts = made("unigram"), reviews()[:8]
    model = model_for(whole, kind, top, **config)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(3))
    small, tokenizer, numbers = trimmed(model, whole, texts, add={700})
    given, same = batch(whole, texts), batch(tokenizer, texts)
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"], same["decoder_input_ids"] = given["input_ids"], same["input_ids"]
    with torch.no_grad():
        before, after = model(**given).logits, small(**same).logits
    if top != "AutoModelForSequenceClassification":
        assert after.shape[-1] == len(numbers)
        before = before[..., [*numbers]]
    assert torch.equal(before, after)
    assert small.config.get_text_config().vocab_size == len(tokenizer) == len(numbers)
    assert len(numbers) % 64 == 0
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    tokenizer.save_pretrained(tmp_path)
    small.save_pretrained(tmp_path)
    again = getattr(transformers, top).from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(again(**same).logits, after)
    ids = {n: v for n, v in vars(model.config).items() if n.endswith("_token_id") and v is not None}
    assert {name: getattr(again.config, name) for name in ids} == {n: numbers[v] for n, v in ids.items()}


def test_ids_of_configs_follow():
    whole = made("wordpiece")
    model = model_for(whole, "gpt2", "AutoModelForCausalLM")
    model.generation_config.eos_token_id = [2, 900]
    model.generation_config.suppress_tokens = [901, 5]
    model.generation_config.bad_words_ids = [[5], [901, 5]]
    model.generation_config.forced_bos_token_id = 800
    small, tokenizer, numbers = trimmed(model, whole, ["a cat"], add={5})
    assert 901 not in numbers
    assert small.generation_config.eos_token_id == [numbers[2], numbers[900]]
    assert small.generation_config.suppress_tokens == [numbers[5]]
    assert small.generation_config.bad_words_ids == [[numbers[5]]]
    assert small.generation_config.forced_bos_token_id == numbers[800]
    assert model.generation_config.forced_bos_token_id == 800
    given = batch(tokenizer, ["a cat"])
    assert small.generate(**given, max_new_tokens=3, do_sample=False).max() < len(tokenizer)


def test_a_cut_model_is_trimmed_too(tmp_path):
    whole, texts = made("unigram"), reviews()[:8]
    model = model_for(whole)
    mask = espalier.Mask.ones(espalier.sites(model, "heads"))
    next(iter(mask.values()))[:3] = False
    espalier.cut(model, mask)
    small, tokenizer, _ = trimmed(model, whole, texts)
    with torch.no_grad():
        want = model(**batch(whole, texts)).logits
        assert torch.equal(small(**batch(tokenizer, texts)).logits, want)
    espalier.save(small, tmp_path / "m", tokenizer=tokenizer)
    with torch.no_grad():
        assert torch.equal(espalier.load(tmp_path / "m")(**batch(tokenizer, texts)).logits, want)


def test_a_clustered_vocabulary_is_refused():
    model = tiny("transformer_xl", "AutoModelForCausalLM", cutoffs=[20, 40], div_value=2)
    with pytest.raises(UnsupportedError):
        trim_model(model, {i: i for i in range(30)})


# ---------------------------------------------------------------------------------------- bad input


def test_a_vocabulary_that_would_lose_a_special_token_is_refused():
    whole = made("unigram")
    kept = complete(model_for(whole), whole, range(50))
    for lost in (whole.mask_token_id, whole.unk_token_id, whole.convert_tokens_to_ids("espalier")):
        with pytest.raises(InvalidValueError) as error:
            trim_tokenizer(whole, kept - {lost})
        assert error.value.parameter == "keep"
    with pytest.raises(InvalidValueError):
        trim_tokenizer(whole, {*kept, 10**6})


def test_a_merge_without_its_parts_is_refused():
    whole = made("bytes")
    long = max((t for t in whole.get_vocab() if t not in ("espalier", *SPECIAL, "<mask>")), key=len)
    with pytest.raises(InvalidValueError):
        trim_tokenizer(whole, complete(model_for(whole), whole, []) | {whole.convert_tokens_to_ids(long)})


def test_a_tokenizer_without_a_backend_is_refused(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({"<pad>": 0, "<unk>": 1, "|": 2, "A": 3}))
    slow = transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"))
    with pytest.raises(UnsupportedError):
        backend_of(slow)


def test_a_model_with_fewer_rows_than_tokens_is_refused():
    whole = made("unigram")
    model = model_for(whole, vocab_size=len(whole) - 1)
    with pytest.raises(UnsupportedError):
        trim_vocabulary(model, whole, complete(model, whole, []))


# ---------------------------------------------------------------------------------------- languages


def test_scripts_of_languages():
    assert scripts_of("de,fr") == ["Latn"]
    assert scripts_of(["ja", "sr"]) == ["Cyrl", "Hani", "Hira", "Kana"]
    assert scripts_of("sr-Latn,und-Grek") == ["Grek", "Latn"]
    for wrong in ("german", "zz", "de,,fr", ""):
        with pytest.raises(InvalidValueError):
            scripts_of(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_keeps_all_its_text_and_no_other(kind):
    whole = made(kind)
    model = model_for(whole)
    kept = complete(model, whole, tokens_of_scripts(whole, scripts_of("ru")))
    _, small, numbers = trim_vocabulary(model, whole, kept)
    russian = OTHERS[1]
    assert small(russian)["input_ids"] == [numbers[i] for i in whole(russian)["input_ids"]]
    words = whole(reviews()[0], add_special_tokens=False)["input_ids"]
    assert not all(i in numbers for i in words)


# -------------------------------------------------------------------------------------------- verbs


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with a model whose vocabulary is most of it, and a table of reviews."""
    folder = tmp_path_factory.mktemp("vocabulary")
    whole = made("unigram")
    model = model_for(whole, "xlm-roberta", hidden_size=24, num_attention_heads=2, intermediate_size=32)
    espalier.save(model, folder / "m", tokenizer=whole)
    lines = [f"{i % 2}\t{text}" for i, text in enumerate(reviews()[:50])]
    (folder / "t.tsv").write_text("\n".join(["label\ttext", *lines]), encoding="utf-8")
    (folder / "corpus.txt").write_text("\n".join(OTHERS), encoding="utf-8")
    (folder / "empty.txt").write_text("")
    return folder


def test_prune_trims_to_the_training_texts(place):
    found = espalier.prune(place / "m", place / "t.tsv", target="vocabulary", folder=place / "small")
    facts = found.to_dict()
    size = len(made("unigram")) + 7
    assert facts["tokens"]["before"] == facts["units"] == size
    assert facts["removed"] == pytest.approx(1 - facts["tokens"]["after"] / size)
    assert facts["tokens"]["texts checked"] == 35
    assert 0.5 < facts["coverage"]["validation"]["share"] < 1
    assert facts["after"]["bytes"] == (place / "small" / "model.safetensors").stat().st_size
    assert facts["after"]["bytes"] < 0.6 * facts["before"]["bytes"]
    config = json.loads((place / "small" / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["vocab_size"] == facts["tokens"]["after"]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(place / "small")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "small")
    old = transformers.AutoModelForSequenceClassification.from_pretrained(place / "m")
    covered = [t for t in reviews()[:50] if tokenizer.tokenize(t) == made("unigram").tokenize(t)]
    assert len(covered) >= 35
    with torch.no_grad():
        want = old(**batch(made("unigram"), covered)).logits
        assert torch.equal(model(**batch(tokenizer, covered)).logits, want)
    again = espalier.prune(place / "m", place / "t.tsv", target="vocabulary", min_count=3)
    assert again["tokens"]["after"] < facts["tokens"]["after"]


def test_prune_on_the_command_line(place):
    typed = ["prune", place / "m", "--task", place / "t.tsv", "--target", "vocabulary", "-o", place / "ru"]
    shown = data(*typed, "--set", "languages=ru,el")
    assert shown["corpus"] == "scripts Cyrl, Grek"
    shown = data(*typed, "--set", f"corpus={place / 'corpus.txt'}")
    assert shown["corpus"] == "corpus.txt"
    assert shown["tokens"]["texts checked"] == 3
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "ru")
    assert tokenizer.tokenize(OTHERS[0]) == made("unigram").tokenize(OTHERS[0])


def test_wrong_requests_are_refused(place):
    prune = {"model": place / "m", "task": place / "t.tsv", "target": "vocabulary"}
    with pytest.raises(DataError):
        espalier.prune(**prune, corpus=place / "empty.txt")
    for wrong in (
        {"remove": 0.5},
        {"speedup": 2},
        {"method": "gnorm"},
        {"languages": "german"},
        {"min_count": 2, "languages": "de"},
        {"epochs": 1},
        {"lr": 1e-3},
    ):
        with pytest.raises(InvalidValueError):
            espalier.prune(**prune, **wrong)
    with pytest.raises(espalier.EspalierError):
        espalier.prune(**prune, corpus=place / "missing.txt")
    with pytest.raises(UnknownNameError) as error:
        espalier.prune(**prune | {"target": "vocabulry"})
    assert error.value.nearest == "vocabulary"


def test_a_live_model_of_words(tmp_path):
    session = toys.toy_session()
    found = espalier.prune(
        session.model, session.task, target="vocabulary", tokenizer=session.tokenizer, corpus=write(tmp_path)
    )
    assert found["tokens"]["after"] < found["tokens"]["before"]
    assert found.model.config.vocab_size == found["tokens"]["after"]


def write(folder):
    file = folder / "words.txt"
    file.write_text("ba be bi\n")
    return file
