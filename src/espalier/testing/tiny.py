"""Tiny random models of every type, inputs for them, and masks that differ from layer to layer; batches."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from ..architectures.site import Site
from ..architectures.table import architectures
from ..core.batches import examples_in
from ..core.mask import Mask
from ..core.types import PreTrainedModel

Batch = Mapping[str, Any]
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
    "num_labels": 2,  # question answering needs two: where it starts, where it ends
}
TEXT = "SequenceClassification TokenClassification MaskedLM CausalLM QuestionAnswering Seq2SeqLM"
OTHER = "SpeechSeq2Seq ImageClassification AudioClassification CTC"
TOPS = tuple(f"AutoModelFor{task}" for task in f"{TEXT} {OTHER}".split())
GENERATING = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq")


def tiny(model_type: str, top: str = "AutoModel", attention: str = "sdpa", **config: Any) -> PreTrainedModel:
    """Return a small random model of one type, of the auto class `top`.

    Every bias and norm is perturbed: at their initial zeros and ones they hide errors.
    """
    import transformers

    torch.manual_seed(0)
    settings = {**TINY, **architectures()[model_type].tiny.get(model_type, {}), **config}
    auto = getattr(transformers, top)
    made = transformers.AutoConfig.for_model(model_type, **settings)
    made.architectures = made.architectures or []  # a type with two classes for one task needs a list
    try:
        model = auto.from_config(made, attn_implementation=attention)
    except ValueError as error:
        if "attn_implementation" not in str(error) and "does not support" not in str(error):
            raise
        model = auto.from_config(made, attn_implementation="eager")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            size = 0.3 if p.dim() == 1 else 0.05  # weights too: some are initialised to 0.02 or zero
            p.add_(size * torch.randn(p.shape, generator=generator))
    return model.eval()


def inputs(model: PreTrainedModel, batch: int = 2, tokens: int = 17) -> dict[str, Any]:
    """Return random inputs with padding, for whatever the model reads."""
    generator = torch.Generator().manual_seed(2)
    takes = inspect.signature(model.forward).parameters
    config = model.config
    out: dict[str, Any] = {}
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
    words = text.vocab_size if "input_ids" in takes else 64
    ids = torch.randint(4, words, (batch, tokens), generator=generator)
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
        out["use_cache"] = False
    return out


def outputs(model: PreTrainedModel, given: dict[str, Any]) -> list[Tensor]:
    """Return every floating-point tensor in the model's output."""
    with torch.no_grad():
        return list(tensors_in(model(**given)))


def tensors_in(output: Any) -> Iterator[Tensor]:
    """Yield every floating-point tensor in an output, however deep."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif hasattr(output, "to_tuple"):
        yield from tensors_in(output.to_tuple())
    elif isinstance(output, (tuple, list)):
        for item in output:
            yield from tensors_in(item)


def same(got: Sequence[Tensor], want: Sequence[Tensor], context: str, *, exact: bool = False) -> None:
    """Raise AssertionError unless the tensors are equal, up to rounding if not `exact`."""
    assert len(got) == len(want), f"{context}: {len(got)} tensors, expected {len(want)}"
    for a, b in zip(got, want):
        assert a.shape == b.shape, f"{context}: shape {tuple(a.shape)}, expected {tuple(b.shape)}"
        if not a.numel():
            continue
        difference = (a.double() - b.double()).abs().max().item()
        allowed = 0.0 if exact else 1e-5 * max(1.0, b.abs().max().item())
        assert difference <= allowed, f"{context}: differs by {difference:.3g}"


def uneven(found: Sequence[Site], turn: int, targets: Sequence[str] = ("heads", "neurons")) -> Mask:
    """Return a mask with another count in every layer: of three, one loses all units, one none, one some.

    Turns 0 to 5 are the six orders in which that can happen.
    """
    states = tuple(permutations(range(3)))[turn]
    generator = torch.Generator().manual_seed(turn)
    mask, seen = Mask(), dict[str, int]()
    for site in found:
        stack = re.sub(r"\d+", "*", site.name)
        layer = seen[stack] = seen.get(stack, -1) + 1
        if site.target not in targets or site.uncuttable:
            continue
        # self- and cross-attention of one block must not be in the same state: start elsewhere
        state = states[(layer + len(site.spec.name)) % 3]
        keep = (0, site.units, max(1, site.units // 2 - layer))[state]
        mask[site.name] = torch.zeros(site.units, dtype=torch.bool)
        mask[site.name][torch.randperm(site.units, generator=generator)[:keep]] = True
    return mask


def tops(model_type: str, among: Sequence[str] = TOPS) -> list[str]:
    """Return the auto classes that have a model of this type."""
    import transformers

    config = type(transformers.AutoConfig.for_model(model_type))
    return [top for top in among if config in getattr(transformers, top)._model_mapping]


def heads_can_be_cut(model_type: str) -> bool:
    """Return whether the heads of a type can be cut, and not only gated."""
    return not any(s.uncuttable for s in architectures()[model_type].specs if s.target == "heads")


def split_examples(batches: Sequence[Batch]) -> list[dict[str, Any]]:
    """Return batches of one example each."""
    out = []
    for batch in batches:
        for i in range(examples_in(batch)):
            one = {k: v[i : i + 1] if isinstance(v, Tensor) else v for k, v in batch.items()}
            if "input_ids" in one:  # without a mask, padding that is added later would count as text
                one.setdefault("attention_mask", torch.ones_like(one["input_ids"]))
            out.append(one)
    return out


def merge_examples(singles: Sequence[Batch], *, padding: int = 0) -> dict[str, Any]:
    """Return one batch of all examples; shorter texts get `padding` tokens on the right."""
    fill = {"input_ids": padding, "labels": -100}
    out = dict(singles[0])
    for name, first in out.items():
        if not isinstance(first, Tensor):
            continue
        rows = [one[name] for one in singles]
        if first.dim() == 2 and not first.is_floating_point():
            longest, value = max(row.shape[1] for row in rows), fill.get(name, 0)
            rows = [nn.functional.pad(row, (0, longest - row.shape[1]), value=value) for row in rows]
        out[name] = torch.cat(rows)
    return out


def checks_in(module: str) -> dict[str, Callable[[Any], Any]]:
    """Return the checks of a contract by name: every public function of its module but `check_…`."""
    own = {k: f for k, f in vars(sys.modules[module]).items() if getattr(f, "__module__", "") == module}
    return {k: f for k, f in own.items() if inspect.isfunction(f) and not k.startswith(("_", "check_"))}
