"""Specimens: small random models of every type, inputs for them, and masks no two layers of which agree."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from ..architectures.site import Site
from ..architectures.table import architectures
from ..core.mask import Mask

TINY = {
    "vocab_size": 64,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_labels": 2,  # question answering wants two: where it starts, where it ends
}
TOPS = (
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForQuestionAnswering",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForImageClassification",
    "AutoModelForAudioClassification",
    "AutoModelForCTC",
)


def tiny(kind: str, top: str = "AutoModel", attention: str = "sdpa", **config: Any) -> Any:
    """A small random model of one type, with every bias and norm shaken: at birth they hide errors."""
    import transformers

    torch.manual_seed(0)
    settings = {**TINY, **architectures()[kind].tiny.get(kind, {}), **config}
    auto = getattr(transformers, top)
    made = transformers.AutoConfig.for_model(kind, **settings)
    made.architectures = made.architectures or []  # a type with two classes of one kind asks for it
    try:
        model = auto.from_config(made, attn_implementation=attention)
    except ValueError as error:
        if "attn_implementation" not in str(error) and "does not support" not in str(error):
            raise
        model = auto.from_config(made, attn_implementation="eager")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            shake = 0.3 if p.dim() == 1 else 0.05  # weights too: some are born at 0.02 or zero
            p.add_(shake * torch.randn(p.shape, generator=generator))
    return model.eval()


def inputs(model: Any, batch: int = 2, tokens: int = 17) -> dict[str, Tensor]:
    """Random inputs with padding, for whatever the model eats."""
    generator = torch.Generator().manual_seed(2)
    takes = inspect.signature(model.forward).parameters
    config = model.config
    out: dict[str, Tensor] = {}
    if "pixel_values" in takes:
        vision = getattr(config, "vision_config", config)
        out["pixel_values"] = torch.randn(batch, 3, vision.image_size, vision.image_size, generator=generator)
    if "input_features" in takes:
        frames = 2 * config.max_source_positions
        out["input_features"] = torch.randn(batch, config.num_mel_bins, frames, generator=generator)
        tokens = config.max_source_positions
    if "input_values" in takes:
        out["input_values"] = torch.randn(batch, 400, generator=generator)
        out["attention_mask"] = torch.ones(batch, 400, dtype=torch.long)
        out["attention_mask"][0, 300:] = 0
    text = getattr(config, "text_config", config)
    ids = torch.randint(
        4, text.vocab_size if "input_ids" in takes else 64, (batch, tokens), generator=generator
    )
    ids[:, -1] = 2  # end of sentence: classifiers of encoder-decoders look for it
    if "input_ids" in takes:
        out["input_ids"] = ids
        out["attention_mask"] = torch.ones_like(ids)
        out["attention_mask"][0, :3] = 0
        if not getattr(config, "is_encoder_decoder", False):
            out["attention_mask"][1, -2:] = 0
    if "decoder_input_ids" in takes and config.is_encoder_decoder:
        out["decoder_input_ids"] = ids.flip(0)
    if "use_cache" in takes:
        out["use_cache"] = False  # type: ignore[assignment]
    return out


def answers(model: Any, given: dict[str, Any]) -> list[Tensor]:
    """Every floating tensor a model returns."""

    def walk(value: Any) -> Iterator[Tensor]:
        if isinstance(value, Tensor):
            if value.is_floating_point():
                yield value
        elif isinstance(value, (tuple, list)):
            for item in value:
                yield from walk(item)
        elif hasattr(value, "to_tuple"):
            yield from walk(value.to_tuple())

    with torch.no_grad():
        return list(walk(model(**given)))


def uneven(found: list[Site], turn: int, kinds: tuple[str, ...] = ("heads", "neurons")) -> Mask:
    """A mask with another count in every layer: in each row of layers one loses all, one none, one some.

    Turns 0 to 5 are the six orders in which that can happen to three layers.
    """
    states = tuple(permutations(range(3)))[turn]
    generator = torch.Generator().manual_seed(turn)
    mask, seen = Mask(), dict[str, int]()
    for site in found:
        row = re.sub(r"\d+", "*", site.name)
        layer = seen[row] = seen.get(row, -1) + 1
        if site.target not in kinds or site.part.uncuttable:
            continue
        # Self- and cross-attention of one block should not share a fate: start elsewhere.
        state = states[(layer + len(site.part.name)) % 3]
        keep = (0, site.units, max(1, site.units // 2 - layer))[state]
        mask[site.name] = torch.zeros(site.units, dtype=torch.bool)
        mask[site.name][torch.randperm(site.units, generator=generator)[:keep]] = True
    return mask


def tops(kind: str, among: tuple[str, ...] = TOPS) -> list[str]:
    """The auto classes that have a model of this type."""
    import transformers

    config = type(transformers.AutoConfig.for_model(kind))
    return [top for top in among if config in getattr(transformers, top)._model_mapping]
