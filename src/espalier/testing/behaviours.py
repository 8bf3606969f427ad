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

from ..architectures.site import Site
from ..architectures.sites import sites
from ..core.mask import Mask
from ..core.types import PreTrainedModel
from ..engine.gates import gated, masked
from ..pruning.cut import cut, plan_of
from ..pruning.heads import prune_heads
from . import generation
from .maps import check_maps, heads_of, maps_of
from .tiny import checks_in, heads_can_be_cut, inputs, outputs, same, tensors_in, tiny, tops, uneven

Model = tuple[PreTrainedModel, dict[str, Any]]


def check_behaviours(model_type: str) -> dict[str, bool]:
    """Return {behaviour: whether it applies to this type}; raise AssertionError at the first that fails."""
    return {name: behaviour(model_type) is not False for name, behaviour in BEHAVIOURS.items()}


def gates_mask_heads(model_type: str) -> None:
    """A closed gate takes its head out, whatever that computes; gates get gradients, as `head_mask` did."""
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
        assert gate.grad is not None, f"the gate of {name} has no gradient"
        assert bool(gate.grad.any()), f"the gradient of the gate of {name} is zero"


def heads_are_pruned(model_type: str) -> bool:
    """The first layer keeps one head, the last loses its first; layers may be counted from the end."""
    if not heads_can_be_cut(model_type):
        return False
    with _eager(model_type) as (model, given):
        first, last = _numbered(model)
        units = {site.name: site.units for site in sites(model, "heads")}
        prune_heads(model, {first: range(1, _units(model, first)), last: [0]}, report=False)
        left = {s.name: s.units for s in sites(model, "heads") if s.units != units[s.name]}
        expected = [1, units[list(left)[-1]] - 1]
        assert list(left.values()) == expected, f"{left} left of {units}"
        check_maps(model, given, "pruned")
    return True


def pruned_heads_are_saved(model_type: str) -> bool:
    """`save_pretrained`, then `from_pretrained`, gives the same heads, maps and outputs."""
    if not heads_can_be_cut(model_type):
        return False
    with _eager(model_type) as (model, given):
        first, last = _numbered(model)
        prune_heads(model, {first: range(1, _units(model, first)), last: [0]}, report=False)
        again = _saved_and_loaded(model)
        check_maps(again, given, "loaded")
        same(outputs(again, given), outputs(model, given), "loaded", exact=True)
    return True


def configs_build_the_cut(model_type: str) -> None:
    """A model built from the config of a cut one has its shape, and takes its weights."""
    model = tiny(model_type)
    given = inputs(model)
    cut(model, uneven(sites(model), 5), report=False)
    built = type(model)(copy.deepcopy(model.config)).eval()
    built.load_state_dict(model.state_dict())
    assert plan_of(built).keep == plan_of(model).keep
    same(outputs(built, given), outputs(model, given), "built from its config", exact=True)


def cuts_accumulate(model_type: str) -> bool:
    """Prune, save, load, prune again: the numbering stays that of the unpruned model, the record adds up."""
    if not heads_can_be_cut(model_type):
        return False
    with _eager(model_type) as (model, given):
        first, last = _numbered(model)
        once = copy.deepcopy(model)
        prune_heads(model, {first: [0]}, report=False)
        again = prune_heads(_saved_and_loaded(model), {first: [0], last: [0, 1]}, report=False)
        prune_heads(once, {first: [0], last: [0, 1]}, report=False)
        plan = plan_of(again)
        assert plan.keep == plan_of(once).keep
        removed = {name: set(range(plan.units[name])) - set(kept) for name, kept in plan.keep.items()}
        assert [gone for gone in removed.values() if gone] == [{0}, {0, 1}], f"{removed} are removed"
        same(outputs(_saved_and_loaded(again), given), outputs(once, given), "in two steps", exact=True)
        check_maps(again, given, "in two steps")
    return True


def maps_keep_their_place(model_type: str) -> bool:
    """Every layer has its attention map: [batch, 0, queries, keys] where it has no head left."""
    if not heads_can_be_cut(model_type):
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
    if model.config._attn_implementation != "sdpa":
        return False
    given = inputs(model)
    want = {name: len(found) for name, found in maps_of(model, given).items()}
    cut(model, uneven(sites(model), 0), report=False)
    got = {name: len(found) for name, found in maps_of(model, given).items()}
    assert got == want, f"{got} maps, expected {want}"
    return True


def trains(model_type: str) -> None:
    """What had a gradient before the cut has one after it: distributed training waits for every weight."""
    model = tiny(model_type, next(iter(tops(model_type)), "AutoModel"))
    given = inputs(model)
    whole = copy.deepcopy(model)
    _loss(whole, given).backward()
    expected = {name for name, p in whole.named_parameters() if p.grad is not None}
    none = {s.name: torch.zeros(s.units, dtype=torch.bool) for s in sites(model) if not s.uncuttable}
    for mask in (uneven(sites(model), 0), Mask(none)):
        small = cut(copy.deepcopy(model), mask, report=False)
        optimiser = torch.optim.SGD(small.parameters(), lr=1e-3)
        loss = _loss(small, given)
        loss.backward()
        missing = sorted(expected - {name for name, p in small.named_parameters() if p.grad is not None})
        assert not missing, f"{len(missing)} without a gradient, the first {missing[0]}"
        optimiser.step()
        assert _loss(small, given) < loss, "a small step does not lower the loss"


def checkpoints_gradients(model_type: str) -> bool:
    """Gradient checkpointing gives the same gradients."""
    model = tiny(model_type)
    if not model.supports_gradient_checkpointing:
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
    if not {"input_ids", "decoder_input_ids"} & set(given):
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


class _Plain(torch.nn.Module):
    """A model as torch.jit.trace takes it: tensors in, tensors out."""

    def __init__(self, model: PreTrainedModel, names: list[str]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        more = {"use_cache": False} if "use_cache" in inputs(self.model) else {}
        return tuple(tensors_in(self.model(**dict(zip(self.names, values)), **more)))


def _trace(model: PreTrainedModel, names: list[str]) -> tuple[list[Tensor], list[Tensor]]:
    """Return what the traced model gives for inputs it was not traced with, and what the model gives."""
    given = inputs(model)
    values = tuple(given[name] for name in names)
    plain = _Plain(model, names)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(plain, values, check_trace=False)
        other = tuple(value.flip(0) for value in values)
        return list(traced(*other)), list(plain(*other))


BEHAVIOURS: dict[str, Callable[[str], bool | None]] = {**checks_in(__name__), **generation.BEHAVIOURS}
