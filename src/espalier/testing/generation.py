"""Generation with pruned heads: the tokens of the masked model, and a map of every layer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from ..architectures.sites import sites
from ..core.types import PreTrainedModel
from ..engine.gates import masked
from ..pruning.cut import cut
from .maps import MAPS, heads_of
from .tiny import GENERATING, checks_in, inputs, same, tiny, tops, uneven


def generates_greedily(model_type: str) -> bool:
    """Greedy decoding with a key-value cache gives the tokens of the masked model."""
    return _check_generation(model_type, num_beams=1, do_sample=False)


def generates_with_beams(model_type: str) -> bool:
    """Beam search gives the tokens of the masked model."""
    return _check_generation(model_type, num_beams=3, do_sample=False)


def generates_samples(model_type: str) -> bool:
    """Sampling gives, from the same seed, the tokens of the masked model."""
    return _check_generation(model_type, num_beams=1, do_sample=True, top_k=20)


def generates_without_cache(model_type: str) -> bool:
    """Without a cache the tokens are the same."""
    return _check_generation(model_type, num_beams=1, do_sample=False, use_cache=False)


def generation_returns_maps(model_type: str) -> bool:
    """`generate` returns a map of every layer at every step, also of those without heads."""
    options = {"return_dict_in_generate": True, "output_attentions": True, "max_new_tokens": 3}
    applies = False
    for model, prompt in _generating(model_type, attention="eager"):
        applies = True
        cut(model, uneven(sites(model), 0), report=False)
        found = model.generate(**prompt, **options, min_new_tokens=3, do_sample=False, num_beams=1)
        want = heads_of(model)
        for name in MAPS[1:] if model.config.is_encoder_decoder else MAPS[:1]:
            steps = [found[name]] if name == "encoder_attentions" else found[name]
            got = [[m.shape[1] for m in step] for step in steps]
            assert got == [want[name]] * len(steps), f"{name}: heads {got}, expected {want[name]}"
    return applies


def check_token_by_token(model: PreTrainedModel, given: dict[str, Any], context: str) -> None:
    """The model must find its position in the sequence from the cache: no positions are passed."""
    given = {k: v for k, v in given.items() if k not in ("attention_mask", "use_cache")}
    name = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    steps, cache = [], None
    with torch.no_grad():
        want = model(**given, use_cache=False).logits
        ids = given.pop(name)
        for token in ids[:, :9].split(1, dim=1):
            out = model(**given, **{name: token}, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    same([torch.cat(steps, 1)], [want[:, :9]], f"{context}, token by token")


def _generating(model_type: str, **options: Any) -> Iterator[tuple[PreTrainedModel, dict[str, Any]]]:
    """Yield the classes of this type that generate, and a prompt with padding."""
    for top in tops(model_type, GENERATING):
        model = tiny(model_type, top, **{**options, **({"is_decoder": True} if top == GENERATING[0] else {})})
        if model.can_generate():
            given = inputs(model, tokens=7)
            prompt = {k: v for k, v in given.items() if k in ("input_ids", "input_features")}
            if "input_ids" in prompt:
                prompt["attention_mask"] = torch.ones_like(prompt["input_ids"])
                prompt["attention_mask"][0, :3] = 0
            yield model, prompt


def _check_generation(model_type: str, **options: Any) -> bool:
    applies = False
    for model, prompt in _generating(model_type):
        applies = True
        for turn in (0, 3):
            small, mask, found = copy.deepcopy(model), uneven(sites(model), turn), []
            cut(small, mask, report=False)
            for one in (model, small):
                torch.manual_seed(0)
                with masked(model, mask):
                    found.append(one.generate(**prompt, **options, max_new_tokens=5, min_new_tokens=5))
            assert torch.equal(*found), f"{type(model).__name__}, turn {turn}: other tokens than masked"
    return applies


BEHAVIOURS = checks_in(__name__)
