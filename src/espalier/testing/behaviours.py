"""What transformers 4 tested of models with pruned heads, on tiny random models of any supported type.

Each behaviour takes a model type, raises AssertionError where it fails, and returns False where it does not
apply: to models that do not generate, or whose heads can only be gated. `check_behaviours` runs all of them.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..architectures.registry import architectures
from ..architectures.site import Site
from ..architectures.sites import sites
from ..core.mask import Mask
from ..core.types import PreTrainedModel
from ..engine.gates import gated, masked
from ..pruning.cut import cut
from ..pruning.heads import prune_heads
from ..pruning.record import plan_of
from .maps import MAPS, check_maps, heads_of, maps_of
from .tiny import GENERATING, checks_in, inputs, outputs, same, tensors_in, tiny, tops, uneven

Model = tuple[PreTrainedModel, dict[str, Any]]


def check_behaviours(model_type: str) -> dict[str, bool]:
    """Return {behaviour: whether it applies to this type}; raise AssertionError at the first that fails."""
    return {name: behaviour(model_type) is not False for name, behaviour in BEHAVIOURS.items()}


def gates_mask_heads(model_type: str) -> None:
    """A closed gate takes its head out, whatever the head computes; gates get gradients, as `head_mask` did."""
    model = tiny(model_type)
    given, found = inputs(model), sites(model, "heads")
    mask = Mask.without(found, {0: [0], len(found) - 1: range(found[-1].units - 1)})
    whole = outputs(model, given)
    with masked(model, mask):
        want = outputs(model, given)
        for site in found:
            _scramble_values(site, ~mask[site.name])
        same(outputs(model, given), want, "what a masked head computes matters")
    assert any(not torch.allclose(a, b, atol=1e-4) for a, b in zip(whole, want)), "the mask has no effect"
    with gated(found) as gates:
        _loss(model, given).backward()
    for name, gate in gates.items():
        assert gate.grad is not None and bool((gate.grad != 0).any()), f"the gate of {name} has no gradient"


def heads_are_pruned(model_type: str) -> bool:
    """The first layer keeps one head, the last loses its first; layers may be counted from the end."""
    if not _cuttable(model_type):
        return False
    with _eager(model_type) as (model, given):
        first, last = _numbered(model)
        units = {site.name: site.units for site in sites(model, "heads")}
        prune_heads(model, {first: range(1, _units(model, first)), last: [0]})
        changed = {s.name: s.units for s in sites(model, "heads") if s.units != units[s.name]}
        assert len(changed) == 2 and list(changed.values())[0] == 1, f"{changed} of {units}"
        assert list(changed.values())[1] == units[list(changed)[1]] - 1, f"{changed} of {units}"
        check_maps(model, given, "pruned")
    return True


def pruned_heads_are_saved(model_type: str) -> bool:
    """`save_pretrained`, then `from_pretrained`, gives the same heads, maps and outputs."""
    if not _cuttable(model_type):
        return False
    with _eager(model_type) as (model, given):
        first, last = _numbered(model)
        prune_heads(model, {first: range(1, _units(model, first)), last: [0]})
        again = _saved_and_loaded(model)
        check_maps(again, given, "loaded")
        same(outputs(again, given), outputs(model, given), "loaded", exact=True)
    return True


def cuts_accumulate(model_type: str) -> bool:
    """Prune, save, load, prune again: the numbering stays that of the unpruned model, the record adds up."""
    if not _cuttable(model_type):
        return False
    with _eager(model_type) as (model, given):
        first, last = _numbered(model)
        once = copy.deepcopy(model)
        prune_heads(model, {first: [0]})
        again = prune_heads(_saved_and_loaded(model), {first: [0], last: [0, 1]})
        prune_heads(once, {first: [0], last: [0, 1]})
        assert plan_of(again).keep == plan_of(once).keep
        same(outputs(_saved_and_loaded(again), given), outputs(once, given), "in two steps", exact=True)
        check_maps(again, given, "in two steps")
    return True


def maps_keep_their_place(model_type: str) -> bool:
    """Every layer has its attention map: [batch, 0, queries, keys] where it has no head left."""
    if not _cuttable(model_type):
        return False
    with _eager(model_type) as (model, given):
        for turn in (0, 3):
            small = cut(copy.deepcopy(model), uneven(sites(model), turn, ("heads",)), report=False)
            check_maps(small, given, f"turn {turn}")
    for decoder, given in _with_cross_attention(model_type):
        check_maps(cut(decoder, uneven(sites(decoder), 1), report=False), given, "cross-attention")
    return True


def fast_attention_has_no_maps(model_type: str) -> bool:
    """Where sdpa gives no maps, a cut model gives none either, not those of its empty layers."""
    model = tiny(model_type)
    if not _cuttable(model_type) or model.config._attn_implementation != "sdpa":
        return False
    given = inputs(model)
    want = {name: len(found) for name, found in maps_of(model, given).items()}
    cut(model, uneven(sites(model), 0), report=False)
    got = {name: len(found) for name, found in maps_of(model, given).items()}
    assert got == want, f"{got} maps, expected {want}"
    return True


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


def trains(model_type: str) -> bool:
    """What gets a gradient in the unpruned model gets one after the cut: distributed training waits for it."""
    if not _cuttable(model_type):
        return False
    model = tiny(model_type, next(iter(tops(model_type)), "AutoModel"))
    given = inputs(model)
    whole = copy.deepcopy(model)
    _loss(whole, given).backward()
    expected = {name for name, p in whole.named_parameters() if p.grad is not None}
    none = {s.name: torch.zeros(s.units, dtype=torch.bool) for s in sites(model)}
    for mask in (uneven(sites(model), 0), Mask(none)):
        small = cut(copy.deepcopy(model), mask, report=False)
        optimiser = torch.optim.SGD(small.parameters(), lr=1e-3)
        loss = _loss(small, given)
        loss.backward()
        missing = sorted(expected - {name for name, p in small.named_parameters() if p.grad is not None})
        assert not missing, f"{len(missing)} without a gradient, the first {missing[0]}"
        optimiser.step()
        assert _loss(small, given) < loss, "a small step does not lower the loss"
    return True


def checkpoints_gradients(model_type: str) -> bool:
    """Gradient checkpointing gives the same gradients."""
    model = tiny(model_type)
    if not _cuttable(model_type) or not model.supports_gradient_checkpointing:
        return False
    given = inputs(model)
    cut(model, uneven(sites(model), 2), report=False).train()
    for module in model.modules():  # the same numbers twice
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    found = []
    for checkpointed in (False, True):
        again = copy.deepcopy(model)
        if checkpointed:
            again.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(0)
        _loss(again, given).backward()
        found.append({name: p.grad for name, p in again.named_parameters() if p.grad is not None})
    assert set(found[0]) == set(found[1])
    same([found[1][name] for name in found[0]], list(found[0].values()), "checkpointed")
    return True


def resizes_embeddings(model_type: str) -> bool:
    """`resize_token_embeddings` works on a cut model, and what is saved then loads."""
    model = tiny(model_type)
    given = inputs(model)
    try:
        rows = model.get_input_embeddings().weight.shape[0]
    except (AttributeError, NotImplementedError):
        return False  # images and sound have no vocabulary, and two towers no one vocabulary
    if not _cuttable(model_type) or not {"input_ids", "decoder_input_ids"} & set(given):
        return False
    cut(model, uneven(sites(model), 4), report=False)
    want = outputs(model, given)
    model.resize_token_embeddings(rows + 7, mean_resizing=False)
    assert model.get_input_embeddings().weight.shape[0] == rows + 7
    same(outputs(model, given), want, "resized")
    same(outputs(_saved_and_loaded(model), given), want, "resized, saved and loaded")
    return True


def traces(model_type: str) -> bool:
    """`torch.jit.trace`, where it works on the unpruned model, gives the same outputs."""
    if not _cuttable(model_type):
        return False
    model = tiny(model_type, attention="eager")
    names = [n for n, v in inputs(model).items() if isinstance(v, Tensor)]
    small = cut(copy.deepcopy(model), uneven(sites(model), 0), report=False)
    try:
        traced, want = _trace(small, names)
    except Exception:
        try:
            _trace(model, names)
        except Exception:
            return False  # as it is, transformers or torch cannot
        raise
    same(traced, want, "traced")
    return True


def _cuttable(model_type: str) -> bool:
    return not any(s.uncuttable for s in architectures()[model_type].specs if s.target == "heads")


@contextmanager
def _eager(model_type: str) -> Iterator[Model]:
    model = tiny(model_type, attention="eager")
    yield model, inputs(model)


def _numbered(model: PreTrainedModel) -> tuple[int | str, int | str]:
    """Return the first and the last layer: numbers, or names where a model has several towers."""
    names = [site.name for site in sites(model, "heads")]
    return (names[0], names[-1]) if len(set(heads_of(model)) & {"text_model", "vision_model"}) else (0, -1)


def _units(model: PreTrainedModel, layer: int | str) -> int:
    found = sites(model, "heads")
    return next(s.units for i, s in enumerate(found) if layer in (i, s.name))


def _scramble_values(site: Site, removed: Tensor) -> None:
    """Change what these heads compute, in place."""
    role = next(role for role in ("v", "qkv", "kv") if role in site.places)
    rows = site.index("v")[removed].flatten()
    with torch.no_grad():
        site.module(role).weight.movedim(site.axis("v"), 0)[rows] *= -3


def _loss(model: PreTrainedModel, given: dict[str, Any]) -> Tensor:
    """Return a loss that every output has a share in."""
    found = [t for t in tensors_in(model(**given)) if t.requires_grad]
    return torch.stack([t.float().square().mean() for t in found]).sum()


def _saved_and_loaded(model: PreTrainedModel) -> PreTrainedModel:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        implementation = model.config._attn_implementation
        return type(model).from_pretrained(folder, attn_implementation=implementation).eval()


def _with_cross_attention(model_type: str) -> Iterator[Model]:
    """Yield a decoder of this type with cross-attention, if a setting gives it one."""
    model = tiny(model_type, attention="eager", add_cross_attention=True, is_decoder=True)
    if not model.config.is_encoder_decoder and any(s.spec.name == "cross_heads" for s in sites(model)):
        given = {**inputs(model), "encoder_hidden_states": torch.ones(2, 5, model.config.hidden_size)}
        try:
            outputs(model, given)
        except RuntimeError:
            return  # ESM's own cannot read another number of tokens
        yield model, given


def _generating(model_type: str, **options: Any) -> Iterator[Model]:
    """Yield the classes of this type that generate, and a prompt with padding."""
    for top in tops(model_type, GENERATING) if _cuttable(model_type) else ():
        model = tiny(model_type, top, **options, **({"is_decoder": True} if top == GENERATING[0] else {}))
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


class _Plain(torch.nn.Module):
    """A model as torch.jit.trace takes it: tensors in, tensors out."""

    def __init__(self, model: PreTrainedModel, names: list[str]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        more = {"use_cache": False} if "use_cache" in inputs(self.model) else {}
        return tuple(tensors_in(self.model(**dict(zip(self.names, values)), **more)))


def _trace(model: PreTrainedModel, names: list[str]) -> tuple[list[Tensor], list[Tensor]]:
    """Return what the traced model gives for other inputs than it was traced with, and what the model does."""
    given = inputs(model)
    values = tuple(given[name] for name in names)
    plain = _Plain(model, names)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(plain, values, check_trace=False)
        other = tuple(value.flip(0) for value in values)
        return list(traced(*other)), list(plain(*other))


BEHAVIOURS: dict[str, Callable[[str], bool | None]] = checks_in(__name__)
